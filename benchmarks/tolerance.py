"""Tolerance and verdicts against the reference itself (one thread): what judging an answer costs.

    python benchmarks/tolerance.py [CASES] [SECONDS_PER_ROW]

First over random small cases (T <= 8, H <= 8), all of them in each round; then one case of each of some larger sizes.
The answer judged is the reference's own in the case's dtype.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits
from timing import against, interleaved

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from random_cases import random_case

from bridge.answers import Answer, Reply, Task
from bridge.case import MODES, Case
from bridge.reference import gradients
from bridge.tolerance import truth
from bridge.verdicts import judge_reply

LARGER = (
    {"T": 30, "B": 4, "I": 16, "H": 16},
    {"T": 50, "B": 8, "I": 32, "H": 64},
    {"T": 200, "B": 32, "I": 64, "H": 128},
)


def small_cases(count: int) -> list[Case]:
    """Cases of T, H <= 8 in all modes, one and two layers, both directions and dtypes."""
    cases = []
    for index in range(count):
        rng = np.random.default_rng([5, index])
        sizes = {"T": int(rng.integers(1, 9)), "H": int(rng.integers(1, 9))}
        cases.append(random_case(rng, mode=MODES[index % 5], dtype=("float32", "float64")[index // 5 % 2], **sizes))
    return [case.replace(requested=("x", "params", "h0", "c0")[: 4 if case.mode == "lstm" else 3]) for case in cases]


def compare(cases: Sequence[Case], seconds: float) -> str:
    """Time of tolerance and verdicts, of the reference, and their ratio."""
    grads = [gradients(case, dtype=case.dtype) for case in cases]
    tasks = [Task(case, case.seq_len) for case in cases]
    replies = [
        Reply({name: Answer(found[name]) for name in case.quantities}) for case, found in zip(cases, grads, strict=True)
    ]

    def judged() -> None:
        for task, reply in zip(tasks, replies, strict=True):
            verdicts = judge_reply(reply, truth(task))
            assert all(one.verdict == "agrees" for one in verdicts.values())

    def reference() -> None:
        for case in cases:
            gradients(case)

    taken = interleaved({"judged": judged, "reference": reference}, seconds)
    return against(taken["judged"], taken["reference"])


def main(count: int, seconds: float) -> None:
    print(f"numpy {np.__version__}; tolerance and verdicts, reference, their ratio")
    with threadpool_limits(limits=1):
        print(f"{count} small cases {compare(small_cases(count), seconds)}", flush=True)
        for size in LARGER:
            for mode in ("rnn_tanh", "lstm", "gru"):
                fixed = {"mode": mode, "layers": 1, "bidirectional": False, "dtype": "float32", "head": "given"}
                case = random_case(np.random.default_rng(1), **fixed, **size, scale=size["H"] ** -0.5)
                shape = " ".join(f"{key}={value}" for key, value in size.items())
                print(f"{shape:24} {mode:8} {compare([case], seconds)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000, float(sys.argv[2]) if len(sys.argv) > 2 else 10)
