"""Plant every fault in every mode with layers 1 and 2 and count how often its name comes out.

python benchmarks/planted_faults.py [CASES_PER_CELL] [SEED]
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from planting import KINDS, at_random, outcome, unplanted

from bridge.case import MODES


def main(count: int, seed: int) -> None:
    for number, kind in enumerate(KINDS):
        for mode in MODES:
            for layers in (1, 2):
                found: Counter[str] = Counter()
                for index in range(count):
                    rng = np.random.default_rng([seed, number, MODES.index(mode), layers, index])
                    found[outcome(rng, kind, mode, layers)] += 1
                shown = count - found["absent"] - sum(n for key, n in found.items() if key == "apart: right")
                if shown:
                    others = {key: n for key, n in found.items() if key not in ("right", "absent")}
                    share = found["right"] / shown
                    print(f"{kind:34} {mode:12} {layers} layers: {found['right']}/{shown} ({share:.0%}) {others or ''}")
    named = 0
    for index in range(500):
        rng = np.random.default_rng([seed, 90, index])
        named += len(unplanted(rng, MODES[index % 5], 1 + index % 2))
    print(f"right gradients that got a name: {named} of 500")
    spoiled: Counter[str] = Counter()
    for index in range(200):
        rng = np.random.default_rng([seed, 91, index])
        spoiled.update(match.fault for match in at_random(rng, MODES[index % 5], 1))
    print(f"gradients wrong at random: {dict(spoiled)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
