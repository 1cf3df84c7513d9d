"""How long MXNet workers take to start together, against one alone.

    python benchmarks/startup.py [ROUNDS]

A run has one process per group of backends, and feeds as many groups at once as there are cores. Here 1, 2 and 4
groups, each a process with MXNet in it, are started by a run, and answer the smallest shipped case. The peer is as
many bare interpreters that import MXNet, all started at once. Printed are wall seconds (median, smallest to largest),
the ratio to the peer, the ratio of n together to one alone for both (the cores allow ceil(n / cores) where nobody else
uses them), and the workers' processor seconds each, which would grow with n if their threads fought. Rounds are
interleaved.
"""

import dataclasses
import math
import os
import resource
import subprocess
import sys
import time
from statistics import median

import bridge
from bridge.backends.registry import select
from bridge.comparison import Progress, Run

BARE = "import numpy; numpy.bool = bool; import mxnet"  # it wants an alias that NumPy has dropped
COUNTS = (1, 2, 4)
ONE = {"OMP_NUM_THREADS": "1", "MXNET_CPU_WORKER_NTHREADS": "1"}


def started(count: int) -> tuple[float, float, int]:
    """Wall seconds, the workers' processor seconds, and the most threads one of them has."""
    (one,) = select(["mxnet-*/unrolled"])
    backends = [dataclasses.replace(one, name=f"{one.name}-{n}", group=f"{one.group}-{n}") for n in range(count)]
    run = Run([bridge.load_case("flux-1547")], backends, None, False, Progress())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    run.collect()
    seconds = time.perf_counter() - began
    processes = [session.worker._process for session in run.sessions.values()]
    threads = max(process.num_threads() for process in processes)
    run.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime, threads


def imported(count: int) -> float:
    """Wall seconds until so many bare interpreters have imported MXNet."""
    began = time.perf_counter()
    processes = [subprocess.Popen([sys.executable, "-c", BARE], env=os.environ | ONE) for _ in range(count)]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit("a bare interpreter cannot import MXNet")
    return time.perf_counter() - began


def told(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def main(rounds: int) -> None:
    runs: dict[int, list[tuple[float, float, int]]] = {count: [] for count in COUNTS}
    bare: dict[int, list[float]] = {count: [] for count in COUNTS}
    for _ in range(rounds):
        for count in COUNTS:
            runs[count].append(started(count))
            bare[count].append(imported(count))
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}, {runs[1][0][2]} threads in a worker")
    for count in COUNTS:
        wall, processor, _ = zip(*runs[count], strict=True)
        alone = [
            median(one) / median(first) for one, first in ((wall, [row[0] for row in runs[1]]), (bare[count], bare[1]))
        ]
        ratio = median(wall) / median(bare[count])
        print(f"{count} together: {told(wall)}, bare imports {told(bare[count])}: ratio {ratio:.2f}")
        print(
            f"  against one alone: {alone[0]:.2f} times, bare imports {alone[1]:.2f} times, "
            f"the cores allow {math.ceil(count / cores)}; {median(processor) / count:.2f} s of processor each"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
