"""Interleaved timing of rivals in one process, for the scripts beside it."""

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(calls: Mapping[str, Callable[[], object]], seconds: float = 3.0) -> dict[str, list[float]]:
    """Call the rivals in turn, so that whatever else the machine does strikes them alike; return seconds per call.

    Each is called once unmeasured, then in rounds until all of them together took ``seconds``, at least 5 rounds.
    """
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(next(iter(taken.values()))) < 5:
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    return taken


def against(ours: list[float], peer: list[float]) -> str:
    """Medians, the ratio of each round's pair (median, and the middle half of the rounds), and how many rounds."""
    low, ratio, high = statistics.quantiles([a / b for a, b in zip(ours, peer, strict=True)], n=4)
    median = [statistics.median(times) * 1e3 for times in (ours, peer)]
    return f"{median[0]:9.3f} ms {median[1]:9.3f} ms  ratio {ratio:6.3f} ({low:.3f} to {high:.3f}), {len(ours)} rounds"
