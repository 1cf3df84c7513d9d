"""How long judging and writing a large `gradients` table takes, against pyarrow writing the same table.

    python benchmarks/tables.py [BACKENDS] [ROUNDS] [FOLDER]

A backend's answer to an LSTM with T=200, B=32, I=64, H=128 has 1.3 million elements; four backends (the default) make
5.3 million rows. The answers are made up: the reference in float32, off by a few units in the last place, with a noise
floor of that size (what the tolerance really costs is another benchmark's matter). Ours is judging each answer and
writing the table; the peer is handed the finished table in memory and only writes it. Both write to FOLDER, by default
a temporary one: name one in memory (/dev/shm) where the disk is slow. Printed are wall and processor seconds (median,
and smallest to largest), their ratios, and by how much the process grew while it wrote, for one backend and for all.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from random_cases import random_case

import bridge
from bridge.answers import Answer, Reply, Task
from bridge.report import tables
from bridge.report.files import write_batches
from bridge.tolerance import Truth
from bridge.verdicts import Outcome, judge_reply


def mapped(values, change):
    """Change every array of a quantity."""
    if isinstance(values, tuple):
        return tuple(tuple(change(array) for array in row) for row in values)
    return change(values)


def answers(backends: int) -> tuple[Truth, list[Reply]]:
    rng = np.random.default_rng(0)
    case = random_case(rng, mode="lstm", dtype="float32", layers=1, bidirectional=False, T=200, B=32, I=64, H=128)
    case = case.replace(requested=("x", "params", "h0", "c0"))
    right = bridge.reference.gradients(case)
    eps = float(np.finfo(np.float32).eps)
    known = Truth(
        Task(case, case.seq_len), right, {k: mapped(v, lambda a: eps * np.abs(a)) for k, v in right.items()}, "float32"
    )

    def off(array):
        return (array * (1 + eps * rng.normal(size=array.shape))).astype(np.float32)

    return known, [
        Reply({name: Answer(mapped(values, off)) for name, values in right.items()}) for _ in range(backends)
    ]


def judged(known: Truth, replies: list[Reply]) -> list[Outcome]:
    return [Outcome(f"one-1/{n}", known.task, judge_reply(reply, known), known) for n, reply in enumerate(replies)]


def grown(work: Callable[[], None]) -> float:
    """Return by how many MB the process grew at most while it worked; Linux tells the peak since it was cleared."""

    def status(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


def clocked(work: Callable[[], None]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def main(backends: int, rounds: int, folder: Path) -> None:
    known, replies = answers(backends)
    outcomes = judged(known, replies)
    for suffix in ("csv", "parquet"):
        for some in (outcomes[:1], outcomes):
            path = folder / f"ours.{suffix}"
            more = grown(lambda some=some, p=path: write_batches(tables.gradient_batches(some), p))
            print(f"{suffix}, {len(some)} backends: the process grew by {more:.0f} MB while it wrote")
    table = pa.Table.from_batches(tables.gradient_batches(outcomes)).unify_dictionaries()
    print(f"{table.num_rows} rows, {table.nbytes / 1e6:.0f} MB as pyarrow holds them; pyarrow {pa.__version__}")
    del outcomes
    plain = csv.WriteOptions(quoting_style="none")
    peers = {
        "csv": lambda path: csv.write_csv(table, path, plain),
        "parquet": lambda path: parquet.write_table(table, path, compression="zstd"),
    }
    for suffix, peer in peers.items():
        path = folder / f"ours.{suffix}"
        works = {
            "judged and written": lambda p=path: write_batches(tables.gradient_batches(judged(known, replies)), p),
            "judged alone": lambda: judged(known, replies),
            "pyarrow": lambda p=path, write=peer: write(p.with_name(f"peer{p.suffix}")),
        }
        seconds = {what: [] for what in works}
        for _ in range(rounds):
            for what, work in works.items():
                seconds[what].append(clocked(work))
        sizes = [one.stat().st_size / 1e6 for one in (path, path.with_name(f"peer.{suffix}"))]
        print(f"{suffix}: {sizes[0]:.0f} MB, pyarrow's {sizes[1]:.0f} MB")
        for what, found in seconds.items():
            kinds = zip(("wall", "processor"), zip(*found, strict=True), strict=True)
            told = ", ".join(f"{median(s):.2f} s {kind} ({min(s):.2f} to {max(s):.2f})" for kind, s in kinds)
            print(f"  {what}: {told}")
        ours, theirs = (np.median(seconds[what], axis=0) for what in ("judged and written", "pyarrow"))
        print("  ratio: {:.2f} wall, {:.2f} processor".format(*(ours / theirs)))


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:3]]
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as made:
        main(*numbers, *(4, 3)[len(numbers) :], Path(made))
