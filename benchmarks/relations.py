"""Over random cases: do right backends keep every relation, and how close do they come to breaking one?

    python benchmarks/relations.py [CASES] [SEED] [BACKEND ...]

Prints every violation, the verdicts by backend, dtype and relation with the worst difference in units of the allowed
one, and how many calls were made.
"""

import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from random_cases import random_case

from bridge.answers import SPECIAL
from bridge.backends.registry import select
from bridge.case import MODES
from bridge.relations import RELATIONS, VIOLATED, Calls


def main(count: int, seed: int, patterns: list[str]) -> None:
    sessions = {backend.name: backend.open(120) for backend in select(patterns)}
    verdicts: Counter[tuple[str, str, str, str]] = Counter()
    worst: dict[tuple[str, str, str], float] = {}
    made = measured = 0
    began = time.monotonic()
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        length = int(rng.integers(1, 13))
        case = random_case(rng, mode=MODES[index % 5], dtype=("float32", "float64")[index // 5 % 2], T=length)
        for name, session in sessions.items():
            calls = Calls(session.ask, understands=SPECIAL if name.startswith("mxnet-") else ())
            for relation in RELATIONS:
                result = relation.check(calls, case)
                verdicts[name, case.dtype, relation.name, result.verdict] += 1
                if result.worst > 0 and result.allowed > 0:
                    key = (name, case.dtype, relation.name)
                    worst[key] = max(worst.get(key, 0.0), result.worst / result.allowed)
                if result.verdict == VIOLATED:
                    print(index, name, case, result.text, flush=True)
            made += len(calls.seen)
            measured += len(calls.noises)
    for key, number in sorted(verdicts.items()):
        print(*key, number, f"worst {worst.get(key[:3], 0.0):.3g}")
    print(f"{made} calls, noise measured {measured} times, {time.monotonic() - began:.0f} s")
    for session in sessions.values():
        session.stop()


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 150,
        int(sys.argv[2]) if len(sys.argv) > 2 else 1,
        sys.argv[3:] or ["fused-onednn", "unrolled"],
    )
