"""Over random cases: do right backends stay silent, and is a small error caught?

    python benchmarks/false_alarms.py [CASES] [SEED]

Prints, per backend, how many arrays were judged, the verdicts, and the worst error in units of the tolerance; then the
share of single-element errors that the verdicts catch. Every case runs in float32 and float64.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from random_cases import random_case
from sensitivity import Caught

from bridge.answers import Task
from bridge.backends.registry import select
from bridge.case import MODES
from bridge.tolerance import truth
from bridge.verdicts import judge


def main(count: int, seed: int) -> None:
    backends = select(["fused-onednn", "unrolled"])
    sessions = {backend.name.split("/")[1]: backend.open(120) for backend in backends}
    verdicts: Counter[tuple[str, str, str]] = Counter()
    worst: dict[tuple[str, str], float] = {}
    caught = {dtype: Caught(dtype) for dtype in ("float32", "float64")}
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        case = random_case(rng, mode=MODES[index % 5], dtype=("float32", "float64")[index // 5 % 2])
        case = case.replace(requested=("x", "params", "h0", "c0")[: 4 if case.mode == "lstm" else 3])
        known = truth(Task(case, case.seq_len))
        caught[case.dtype].add(case, known)
        for name, session in sessions.items():
            for quantity, answer in session.ask(Task(case, case.seq_len)).answers.items():
                judged = judge(quantity, answer, known)
                verdicts[name, case.dtype, judged.verdict] += 1
                ratio = max((float(np.max(b.abs_err / b.tolerance)) for b in judged.blocks), default=0.0)
                worst[name, case.dtype] = max(worst.get((name, case.dtype), 0.0), ratio)
                if judged.verdict not in ("agrees", "unsupported") or ratio > 0.75:
                    print(index, name, case, quantity, judged.verdict, judged.reason, f"{ratio:.3g} tolerances")
    for key, number in sorted(verdicts.items()):
        print(*key, number)
    for pair, ratio in worst.items():
        print(*pair, f"worst error {ratio:.3g} tolerances")
    for one in caught.values():
        print(one)
    for session in sessions.values():
        session.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
