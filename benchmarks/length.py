"""The reference's time and memory by sequence length (one thread, float64).

    python benchmarks/length.py [LONGEST]

Time: an LSTM with B=8, I=H=64 from T=1,250 up to LONGEST (20,000), forward and all gradients, with the time per step
relative to the shortest. Memory: the peak of what is allocated, by tracemalloc, against the arrays that BPTT must keep
in float64 beside the case itself:

    8 * T * B * (I + layers * D * (2 + k) * H) bytes,   k = 5 (LSTM), 4 (GRU), 1 (RNN)

that is dx; per layer and direction the outputs and their cotangents; the LSTM's four gates and cell state, the GRU's
three gates and the product that its reset gate acts on, or the slope of the RNN's tanh, which a saturated output no
longer tells.
"""

import statistics
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from random_cases import random_case

from bridge.case import Case
from bridge.reference import gradients

KEPT = {"lstm": 5, "gru": 4, "rnn_tanh": 1}
ROUNDS = 3


def long_case(mode: str, length: int, layers: int = 1, bidirectional: bool = False) -> Case:
    fixed = {"mode": mode, "layers": layers, "bidirectional": bidirectional, "dtype": "float64", "head": "ones"}
    return random_case(np.random.default_rng(1), T=length, B=8, I=64, H=64, scale=1 / 8, **fixed)


def must_keep(case: Case) -> int:
    per_layer = case.directions * (2 + KEPT[case.mode]) * case.hidden_size
    return 8 * case.seq_len * case.batch * (case.input_size + case.layers * per_layer)


def peak(case: Case) -> int:
    """Bytes allocated at most while the gradients are computed."""
    tracemalloc.start()
    gradients(case)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def main(longest: int) -> None:
    lengths = [longest // 16, longest // 8, longest // 4, longest // 2, longest]
    cases = {length: long_case("lstm", length) for length in lengths}
    taken: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in range(ROUNDS):
        for length, case in cases.items():
            began = time.perf_counter()
            gradients(case)
            taken[length].append(time.perf_counter() - began)
    shortest = statistics.median(taken[lengths[0]]) / lengths[0]
    for length, times in taken.items():
        per_step = statistics.median(times) / length
        print(
            f"lstm T={length:<6} {statistics.median(times):7.2f} s ({min(times):.2f} to {max(times):.2f}), "
            f"{per_step * 1e6:6.1f} us per step, {per_step / shortest:.2f} of the shortest's"
        )
    for mode in KEPT:
        for layers, bidirectional in ((1, False), (2, True)):
            case = long_case(mode, longest // 8, layers, bidirectional)
            most, least = peak(case), must_keep(case)
            what = f"{mode} T={case.seq_len} {layers} layer{'s, bidirectional' if bidirectional else ''}"
            print(f"{what:38} peak {most / 2**20:7.1f} MiB, must keep {least / 2**20:7.1f} MiB, {most / least:.2f}")


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
