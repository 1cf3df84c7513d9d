"""Does a sweep stay silent on a right backend, and does memory stay flat, in the process that judges and in the worker?

    python benchmarks/sweep.py [CASES] [SEED]

The backend is the reference itself in each case's dtype, in a worker. Prints the findings (there should be none), and
the resident memory of both processes after every tenth of the cases.
"""

import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from planted_backend import planted

from bridge.backends.registry import Sources
from bridge.batches import BATCH, Assignment, bench_of, close_bench, run_batch


def megabytes(process: psutil.Process) -> str:
    return f"{process.memory_info().rss / 2**20:.0f} MB"


def main(count: int, seed: int) -> None:
    backend = planted()
    assignment = Assignment(seed, (backend,), (backend.name,), Sources(), 60.0)
    began, found, floats = time.monotonic(), 0, 0
    for start in range(0, count, BATCH):
        for row in run_batch(assignment, start, min(BATCH, count - start)):
            floats += row["features"]["dtype"] == "float32"
            for result in row["results"].values():
                found += len(result["symptoms"])
                for symptom in result["symptoms"]:
                    print(row["index"], symptom, row["features"])
        if (start + BATCH) % (count // 10) < BATCH:
            with bench_of(assignment) as bench:
                worker = bench.sessions[backend.name].worker._process
            here, there = megabytes(psutil.Process()), megabytes(worker)
            rate = (start + BATCH) / (time.monotonic() - began)
            print(
                f"{start + BATCH} cases, {floats} float32, {found} findings; here {here}, worker {there}; {rate:.0f}/s"
            )
    close_bench()


if __name__ == "__main__":
    main(*(int(value) for value in (sys.argv[1:] + ["10000", "0"][len(sys.argv) - 1 :])))
