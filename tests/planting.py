"""Plants a named fault in a random case and asks for its name."""

import numpy as np
from random_cases import random_case

from bridge.answers import Answer, Task
from bridge.faults import CATALOGUE, Matcher, Seen, gradients
from bridge.tolerance import truth
from bridge.verdicts import judge

KINDS = [name for name in CATALOGUE if name not in ("float32-intermediates", "nothing-returned")]


def draw(rng, mode, layers):
    """A case on which the faults differ: at least three steps, and heads on all of them."""
    sizes = {"T": rng.integers(3, 8), "H": rng.integers(1, 5), "I": rng.integers(1, 5), "B": rng.integers(1, 4)}
    case = random_case(
        rng,
        mode=mode,
        layers=layers,
        bidirectional=bool(rng.integers(2)),
        head=("ones", "given", "given+final")[rng.integers(3)],
        zero_states=False,
        **{name: int(size) for name, size in sizes.items()},
    )
    everything = ("x", "params", "h0", "c0")[: 4 if mode == "lstm" else 3]
    return case.replace(requested=everything)


def seen(task, values):
    """How a backend that returns these values in the case's dtype is seen."""
    case, known = task.case, truth(task)
    rounded = {name: _rounded(values[name], case.dtype) for name in case.quantities}
    return Seen(known, {name: judge(name, Answer(value), known) for name, value in rounded.items()})


def _rounded(value, dtype):
    if isinstance(value, tuple):
        return tuple(tuple(array.astype(dtype) for array in row) for row in value)
    return value.astype(dtype)


def outcome(rng, kind, mode, layers):
    """Plant one and return ``right``, ``apart`` (indistinguishable), ``absent`` (the case cannot show it) or the wrong
    name that came out."""
    case = draw(rng, mode, layers)
    possible = list(CATALOGUE[kind].variants(case))
    if not possible:
        return "absent"
    fault = possible[rng.integers(len(possible))]
    task = Task(case, case.seq_len, accumulate=2 if kind == "buffer-added-to-itself" else 1)
    one = seen(task, gradients(task, [fault]))
    if all(judged.verdict == "agrees" for judged in one.quantities.values()):
        return "apart: right"
    matches = Matcher().diagnose([one])
    (match,) = matches
    if kind in match.kinds:
        return "right"
    if str(fault) in match.others or kind in " ".join(match.others):
        return f"apart: {match.fault}"
    return f"wrong: {match.fault}"


def unplanted(rng, mode, layers):
    """The names that a right gradient gets, in the case's own dtype."""
    import bridge

    case = draw(rng, mode, layers)
    return Matcher().diagnose([seen(Task(case, case.seq_len), bridge.reference.gradients(case, dtype=case.dtype))])


def at_random(rng, mode, layers):
    """The match of a gradient that was made wrong at random: one quantity gets random relative errors."""
    import bridge

    case = draw(rng, mode, layers)
    values = dict(bridge.reference.gradients(case))
    name = case.quantities[1:][rng.integers(len(case.quantities) - 1)]
    values[name] = _spoiled(values[name], rng)
    return Matcher().diagnose([seen(Task(case, case.seq_len), values)])


def _spoiled(value, rng):
    if isinstance(value, tuple):
        return tuple(tuple(_spoiled(array, rng) for array in row) for row in value)
    return value * (1 + 0.1 * rng.standard_normal(value.shape)) + 0.1 * np.abs(value).max() * rng.standard_normal(
        value.shape
    )
