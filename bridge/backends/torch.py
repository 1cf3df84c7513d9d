"""Takes the case out of a live PyTorch module. Its layout is the canonical one; torch itself is never imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bridge.case import DTYPES, PARAM_NAMES, REQUESTABLE
from bridge.errors import BadInputError

if TYPE_CHECKING:
    from bridge.arithmetic import Array

MODES = {"RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu", "LSTM": "lstm", "GRU": "gru"}
"""The case's mode for each mode of ``torch.nn.RNN``, ``LSTM`` and ``GRU``."""


def fields_from_torch(module: Any, x: Any, states: Any = None) -> dict[str, Any]:
    """Fields of a :class:`bridge.Case` for a live ``torch.nn.RNN``, ``LSTM`` or ``GRU`` (or what quacks like one).

    Parameters
    ----------
    module : torch module
        Its weights are copied in their own dtype, float32 or float64; a module without biases gets zeros.
    x : tensor or array, (T, B, I), or (B, T, I) when the module is ``batch_first``
        The input sequence, batched.
    states : optional
        What the module takes as ``hx``: ``h0``, or ``(h0, c0)`` for an LSTM, each (layers * D, B, H). Zeros by
        default.

    Returns
    -------
    dict
        ``name``, ``source``, ``mode``, ``dtype``, ``x (T, B, I)``, ``params``, ``h0``, for an LSTM ``c0``, and
        ``requested``: everything.

    Raises
    ------
    BadInputError
        For what a case cannot express: another module, a projection, active dropout, an unbatched or packed
        sequence, half precision.
    """
    kind = type(module).__name__
    where = f"torch module {kind}"
    mode = MODES.get(str(getattr(module, "mode", None)))
    if mode is None or not hasattr(module, "weight_ih_l0"):
        raise BadInputError(where, "", "a torch.nn.RNN, LSTM or GRU", kind)
    layers, directions = int(module.num_layers), 2 if module.bidirectional else 1
    if getattr(module, "proj_size", 0):
        raise BadInputError(where, "proj_size", "0 (a case has no projection)", str(module.proj_size))
    if module.dropout and module.training and layers > 1:
        raise BadInputError(where, "dropout", "0, or the module in eval mode", f"{module.dropout} in training")
    dtype = _dtype(module.weight_ih_l0)
    if dtype not in DTYPES:
        raise BadInputError(where, "weight_ih_l0", " or ".join(DTYPES), dtype)

    def array(key: str, value: Any) -> Array:
        if hasattr(value, "detach"):
            if _dtype(value) != dtype:
                raise BadInputError(where, key, f"{dtype} like the weights", _dtype(value))
            value = value.detach().cpu().numpy()
        try:
            return np.array(value, dtype=dtype)
        except (TypeError, ValueError):
            raise BadInputError(where, key, "a tensor or array of numbers", type(value).__name__) from None

    sequence = array("x", x)
    if sequence.ndim != 3:
        axes = "(B, T, I)" if module.batch_first else "(T, B, I)"
        raise BadInputError(where, "x", f"a batched sequence {axes}", f"shape {sequence.shape}")
    if module.batch_first:
        sequence = sequence.swapaxes(0, 1)

    def weights(layer: int, direction: int) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for name in PARAM_NAMES:
            key = f"{name}_l{layer}" + "_reverse" * direction
            if name.startswith("bias") and not module.bias:
                found[name] = np.zeros(len(found["weight_ih"]), dtype)
            else:
                found[name] = array(key, getattr(module, key))
        return found

    fields: dict[str, Any] = {
        "name": f"torch-{mode}",
        "source": f"a live torch.nn.{kind}",
        "mode": mode,
        "dtype": dtype,
        "x": sequence,
        "params": [[weights(layer, direction) for direction in range(directions)] for layer in range(layers)],
    }
    names = ("h0", "c0") if mode == "lstm" else ("h0",)
    if states is None:
        zeros = np.zeros((layers * directions, sequence.shape[1], int(module.hidden_size)), dtype)
        states = (zeros,) * len(names)
    elif mode != "lstm":
        states = (states,)
    elif not isinstance(states, (tuple, list)) or len(states) != 2:
        raise BadInputError(where, "states", "the pair (h0, c0)", type(states).__name__)
    fields |= {name: array(name, state) for name, state in zip(names, states, strict=True)}
    return fields | {"requested": tuple(name for name in REQUESTABLE if name != "c0" or name in names)}


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
