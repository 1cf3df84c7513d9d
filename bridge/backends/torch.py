"""PyTorch's ``torch.nn.RNN``, ``LSTM`` and ``GRU`` on the CPU, and cases out of such modules.

Its layout is the canonical one, so parameters are handed over as they are. torch is imported in its worker alone.
"""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from bridge.answers import SPECIAL, WROTE_INTO, Answer, Reply, Task
from bridge.backends.base import LiveBackend
from bridge.case import DTYPES, PARAM_NAMES, REQUESTABLE
from bridge.errors import BadInputError, UnsupportedError
from bridge.limits import DROPOUT, LENGTHS, PROJECTION, not_covered
from bridge.workers import Launch

if TYPE_CHECKING:
    from bridge.arithmetic import Array
    from bridge.case import Case

TESTED = "2.13.0"
"""The version that the tests were run with; what a pattern finds where none is installed."""

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
        raise not_covered(where, "proj_size", PROJECTION, str(module.proj_size))
    if module.dropout and module.training and layers > 1:
        raise not_covered(where, "dropout", DROPOUT, f"{module.dropout} in training mode")
    if hasattr(x, "batch_sizes"):
        raise not_covered(where, "x", LENGTHS, type(x).__name__)
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


# -- the parent's side -------------------------------------------------------------------------------------------


def backends() -> list[LiveBackend]:
    """``torch-<version>/nn`` where PyTorch is installed, nothing where it is not."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return []
    return [_backend(version.partition("+")[0])]


def missing() -> list[LiveBackend]:
    """The backend that somebody asks for who has no PyTorch: ``unavailable``."""
    return (
        [] if backends() else [_backend(TESTED, "PyTorch is not installed; get it with: pip install gradbridge[torch]")]
    )


def _backend(version: str, unavailable: str = "") -> LiveBackend:
    about = "torch.nn.RNN, LSTM and GRU on the CPU"
    return LiveBackend(f"torch-{version}/nn", about, Launch(__name__), unavailable, understands=SPECIAL)


# -- the worker's side -------------------------------------------------------------------------------------------


def open_backend() -> Torch:
    """Import PyTorch in this process."""
    return Torch()


class Torch:
    """``torch.nn`` in a worker."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        self.poison = 12345.678
        self.info = {
            "framework": "torch",
            "version": torch.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        }

    def disturb(self) -> None:
        """Leave values in freed memory that a kernel would show if it read before writing."""
        self.poison += 1
        held = [self.torch.full((4**power,), self.poison) for power in range(3, 9) for _ in range(4)]
        del held

    def run(self, task: Task, variant: str) -> Reply:
        """Compute what the case requests, with exactly that requiring a gradient."""
        case = task.case
        if case.mode == "rnn_identity":
            raise UnsupportedError("torch.nn.RNN has no identity activation")
        given, cotangents = task.inputs()
        tensors = {name: self.torch.from_numpy(array.copy()) for name, array in given.items()}
        for name, tensor in tensors.items():
            tensor.requires_grad_(name in case.requested)
        module = self._module(case).train(task.training)
        heads = [None if head is None else self.torch.from_numpy(head.copy()) for head in cotangents]
        for _ in range(task.accumulate):
            states = (tensors["h0"], tensors["c0"]) if "c0" in tensors else tensors["h0"]
            y, finals = module(tensors["x"], states)
            outputs = [y, *(finals if "c0" in tensors else (finals,))]
            fed = [(output, head) for output, head in zip(outputs, heads, strict=False) if head is not None]
            self.torch.autograd.backward([output for output, _ in fed], [head for _, head in fed])
        values: dict[str, Any] = {"y": y.detach()} | {
            f"d{name}": tensors[name].grad for name in case.requested if name != "params"
        }
        answers = {name: Answer(value.numpy()) for name, value in values.items()}
        if "params" in case.requested:
            answers |= {f"d{name}": Answer(self._gradients(module, name, case)) for name in PARAM_NAMES}
        notes = tuple(
            f"PyTorch {WROTE_INTO} {name}"
            for name, tensor in tensors.items()
            if tensor.detach().numpy().tobytes() != np.ascontiguousarray(given[name]).tobytes()
        )
        return Reply(answers, notes)

    def _module(self, case: Case) -> Any:
        nn = self.torch.nn
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}.get(case.mode, nn.RNN)
        activation = {"nonlinearity": case.mode.removeprefix("rnn_")} if kind is nn.RNN else {}
        module = kind(
            case.input_size,
            case.hidden_size,
            case.layers,
            bidirectional=case.bidirectional,
            dtype=getattr(self.torch, case.dtype),
            **activation,
        )
        weights = {
            f"{name}_l{layer}" + "_reverse" * direction: self.torch.from_numpy(array.copy())
            for layer, cells in enumerate(case.params)
            for direction, cell in enumerate(cells)
            for name, array in zip(PARAM_NAMES, cell, strict=True)
        }
        module.load_state_dict(weights)
        return module.requires_grad_("params" in case.requested)

    def _gradients(self, module: Any, name: str, case: Case) -> tuple[tuple[Array, ...], ...]:
        return tuple(
            tuple(
                getattr(module, f"{name}_l{layer}" + "_reverse" * direction).grad.numpy()
                for direction in range(case.directions)
            )
            for layer in range(case.layers)
        )
