"""Does a sweep stay silent on a right backend, and does memory stay flat, in the process that judges and in the worker?

    python benchmarks/sweep.py [CASES] [SEED] [BACKEND]

The backend is the reference itself in each case's dtype, in a worker, in which nothing should be found; or a live one.
Prints how many cases showed which fault, and the resident memory of both processes after every tenth of the cases.
"""

import sys
import time
from collections import Counter
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from planted_backend import planted

from bridge.backends.registry import Sources, select
from bridge.batches import BATCH, Assignment, bench_of, close_bench, run_batch


def megabytes(process: psutil.Process) -> str:
    return f"{process.memory_info().rss / 2**20:.0f} MB"


def main(count: int = 10000, seed: int = 0, pattern: str = "") -> None:
    backend = select([pattern])[0] if pattern else planted()
    assignment = Assignment(seed, (backend,), (backend.name,), Sources(), 60.0)
    began, found, floats = time.monotonic(), Counter(), 0
    for start in range(0, count, BATCH):
        for row in run_batch(assignment, start, min(BATCH, count - start)):
            floats += row["features"]["dtype"] == "float32"
            for result in row["results"].values():
                found.update(f"{symptom['verdict']}: {symptom['fault']}" for symptom in result["symptoms"])
        if (start + BATCH) % (count // 10) < BATCH:
            with bench_of(assignment) as bench:
                worker = bench.sessions[backend.name].worker._process
            here, there = megabytes(psutil.Process()), megabytes(worker)
            rate = (start + BATCH) / (time.monotonic() - began)
            print(
                f"{start + BATCH} cases, {floats} float32, {found.total()} faults; "
                f"here {here}, worker {there}; {rate:.0f}/s",
                flush=True,
            )
    close_bench()
    for fault, cases in sorted(found.items()):
        print(f"{cases} cases: {fault}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
