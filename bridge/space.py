"""The space that a sweep searches: case ``index`` of seed ``seed``, a pure function of the two.

So that resuming, several jobs and a cluster meet the same cases, each draws from a generator of its own: NumPy's
``SeedSequence(seed, spawn_key=(index,))``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from bridge.answers import Task
from bridge.arithmetic import Array
from bridge.case import GATES, REQUESTABLE, Case, Weights

MAX_LAYERS, MAX_SEQ_LEN, MAX_BATCH, MAX_SIZE = 4, 40, 8, 32
MALFORMED = ("h0[0]", "h0[1]", "h0[2]", "x[1]", "x[2]", "head[0]", "head[1]", "head[2]")
"""Arrays that a sweep hands over one longer than they should be, with the axis."""

_HEADS = ("ones", "last", "given", "given and final states")
_WEIGHTS = ("0.1", "1/sqrt(H)", "0.5", "1", "zero", "large", "saturated gates")
_SEQUENCES = ("random", "one step repeated", "zero")
_STATES = ("zero", "random", "shared")
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Sample:
    """One point of the space.

    Attributes
    ----------
    index : its number.
    task : the case, and how a backend is asked about it.
    traits : what its numbers look like (``weights``, ``sequence``, ``states``), which the arrays do not say.
    """

    index: int
    task: Task
    traits: dict[str, str]

    @property
    def features(self) -> dict[str, Any]:
        """Every field that a condition may speak of, by name."""
        task = self.task
        case = task.case
        possible = REQUESTABLE if case.mode == "lstm" else REQUESTABLE[:3]
        return {
            "mode": case.mode,
            "dtype": case.dtype,
            "layers": case.layers,
            "bidirectional": case.bidirectional,
            "seq_len": task.seq_len,
            "batch": case.batch,
            "input_size": case.input_size,
            "hidden_size": case.hidden_size,
            "requested": " ".join(case.requested),
            "all requested": case.requested == possible,
            "head": case.head if isinstance(case.head, str) else "given",
            "head of states": case.head_hn is not None,
            **self.traits,
            "reset bias": case.mode == "gru" and reset_bias(case),
            "grad_req": "add" if task.accumulate > 1 else "write",
            "training": task.training,
            "malformed": task.malformed,
        }


def sample(seed: int, index: int) -> Sample:
    """Draw case ``index`` of seed ``seed``.

    Sequence lengths and sizes are drawn evenly on a logarithmic scale, so that small ones are common; weights are
    normal of standard deviation 0.1, 1/sqrt(H), 0.5, 1 or 5, zero, or come with biases of +-20 that saturate the gates.
    Half of the GRUs have no bias inside the reset gate's product: other GRUs Flux cannot express.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(index,)))
    mode = _pick(rng, tuple(GATES))
    layers = _pick(rng, range(1, MAX_LAYERS + 1), (0.4, 0.25, 0.2, 0.15))
    directions = 1 + _pick(rng, (False, True))
    length, inputs, hidden = (_size(rng, top) for top in (MAX_SEQ_LEN, MAX_SIZE, MAX_SIZE))
    batch = _size(rng, MAX_BATCH)
    head = _pick(rng, _HEADS)
    traits = {
        "weights": _pick(rng, _WEIGHTS, (0.1, 0.4, 0.15, 0.15, 0.05, 0.05, 0.1)),
        "sequence": _pick(rng, _SEQUENCES, (0.8, 0.15, 0.05)),
        "states": _pick(rng, _STATES),
    }
    states = (layers * directions, batch, hidden)
    start = [_states(rng, traits["states"], states) for _ in range(2 if mode == "lstm" else 1)]
    final = [rng.standard_normal(states) for _ in start]
    case = Case(
        name=f"sweep-{seed}-{index}",
        source=f"case {index} of seed {seed}",
        mode=mode,
        dtype=_pick(rng, ("float32", "float64")),
        x=_sequence(rng, traits["sequence"], (length, batch, inputs)),
        params=tuple(
            tuple(
                Weights(**_weights(rng, traits["weights"], mode, hidden, directions * hidden if layer else inputs))
                for _ in range(directions)
            )
            for layer in range(layers)
        ),
        h0=start[0],
        c0=start[1] if mode == "lstm" else None,
        head=rng.standard_normal((length, batch, directions * hidden)) if head.startswith("given") else head,
        head_hn=final[0] if head.endswith("states") else None,
        head_cn=final[1] if head.endswith("states") and mode == "lstm" else None,
        requested=_requested(rng, REQUESTABLE if mode == "lstm" else REQUESTABLE[:3]),
    )
    way = _pick(rng, ("plain", "add", "predict", "malformed"), (0.75, 0.12, 0.08, 0.05))
    malformed = _pick(rng, MALFORMED)
    if mode == "gru" and _pick(rng, (False, True)):
        case = without_reset_bias(case)
    task = Task(
        case,
        length,
        accumulate=2 if way == "add" else 1,
        training=way != "predict",
        malformed=malformed if way == "malformed" else "",
    )
    return Sample(index, task, traits)


def reset_bias(case: Case) -> bool:
    """Whether a GRU has a bias inside the reset gate's product: in ``bias_hh``'s n rows."""
    return any(cell.bias_hh[2 * case.hidden_size :].any() for layer in case.params for cell in layer)


def without_reset_bias(case: Case) -> Case:
    """Return a GRU with ``bias_hh``'s n rows zero."""
    kept = np.arange(3 * case.hidden_size) < 2 * case.hidden_size
    return case.replace(
        params=tuple(
            tuple(cell._replace(bias_hh=np.where(kept, cell.bias_hh, 0)) for cell in layer) for layer in case.params
        )
    )


def signature(seed: int) -> str:
    """Digest of the first 100 cases of a seed: a changed space is another one, whose cases do not mix with these."""
    digests = (sample(seed, index).task.case.digest() for index in range(100))
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _pick(rng: np.random.Generator, choices: Sequence[_T], odds: Sequence[float] | None = None) -> _T:
    return choices[int(rng.choice(len(choices), p=odds))]


def _size(rng: np.random.Generator, top: int) -> int:
    return int(math.exp(rng.uniform(0, math.log(top + 1))))


def _requested(rng: np.random.Generator, possible: tuple[str, ...]) -> tuple[str, ...]:
    """Draw among all subsets but the empty one, evenly."""
    bits = int(rng.integers(1, 2 ** len(possible)))
    return tuple(name for place, name in enumerate(possible) if bits >> place & 1)


def _states(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    drawn = rng.standard_normal(shape)
    if kind == "shared":  # one state for the whole batch
        drawn = np.repeat(drawn[:, :1], shape[1], axis=1)
    return drawn * (kind != "zero")


def _sequence(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    drawn = rng.standard_normal(shape)
    if kind == "one step repeated":
        drawn = np.repeat(drawn[:1], shape[0], axis=0)
    return drawn * (kind != "zero")


def _weights(rng: np.random.Generator, kind: str, mode: str, hidden: int, inputs: int) -> dict[str, Array]:
    rows = GATES[mode] * hidden
    scales = {"0.1": 0.1, "0.5": 0.5, "1": 1.0, "zero": 0.0, "large": 5.0}
    scale = scales.get(kind, hidden**-0.5)
    shapes = {"weight_ih": (rows, inputs), "weight_hh": (rows, hidden), "bias_ih": (rows,), "bias_hh": (rows,)}
    drawn = {name: scale * rng.standard_normal(shape) for name, shape in shapes.items()}
    if kind == "saturated gates":
        drawn["bias_ih"] = 20 * np.sign(drawn["bias_ih"])
    return drawn
