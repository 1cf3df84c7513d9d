"""The Jacobian map against a pass per loss step (T=50, LSTM, I=16, H=64; one thread each).

    python benchmarks/jacobian.py [SECONDS_PER_ROW]

Reference: the map from its one tape, against `gradients` called for each loss step, and against pulling each loss step
back through one tape without parameter gradients. MXNet's fused operator: the passes that the map makes, its checks
included, against a direct call per loss step, through the same worker. Last, all of `measure`: passes, the truth with
its tolerance for every loss step, and the verdicts.
"""

import sys
import tracemalloc
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits
from timing import against, interleaved

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from random_cases import random_case

from bridge.answers import Task
from bridge.arithmetic import Exact
from bridge.backends.base import Session
from bridge.backends.registry import select
from bridge.case import Case
from bridge.jacobian import _Passes, measure, reference_map
from bridge.reference import Tape, gradients

STEPS = 50


def map_case(batch: int, dtype: str) -> Case:
    fixed = {"mode": "lstm", "layers": 1, "bidirectional": False, "dtype": dtype, "head": "ones", "requested": ("x",)}
    return random_case(np.random.default_rng(1), T=STEPS, B=batch, I=16, H=64, scale=1 / 8, **fixed)


def reference(batch: int, seconds: float) -> None:
    case = map_case(batch, "float64")
    tape = Tape(case, STEPS, Exact())

    def pulled() -> None:
        for step in range(STEPS):
            tape.pull(*tape.cotangents(*case.heads(None, step)), parameters=False)

    calls = {
        "map": lambda: reference_map(case),
        "passes": lambda: [gradients(case, None, step) for step in range(STEPS)],
        "pulled": pulled,
    }
    taken = interleaved(calls, seconds)
    print(f"reference B={batch}: passes / map  {against(taken['passes'], taken['map'])}")
    print(f"reference B={batch}: pulls / map   {against(taken['pulled'], taken['map'])}")
    tracemalloc.start()
    reference_map(case)
    print(f"reference B={batch}: peak {tracemalloc.get_traced_memory()[1] / 2**20:.1f} MiB", flush=True)
    tracemalloc.stop()


def mxnet(session: Session, name: str, batch: int, dtype: str, seconds: float) -> None:
    case = map_case(batch, dtype)
    passes = _Passes(session.ask, case, STEPS, weights=False)
    assert passes.truths  # not part of the passes
    calls = {
        "map": passes.run,
        "passes": lambda: [session.ask(Task(case, STEPS, step)) for step in range(STEPS)],
        "measure": lambda: measure(session, case),
    }
    taken = interleaved(calls, seconds)
    how = passes.run()[1]
    print(f"{name} {dtype} B={batch}: passes / map     {against(taken['passes'], taken['map'])}; {how}")
    print(f"{name} {dtype} B={batch}: passes / measure {against(taken['passes'], taken['measure'])}", flush=True)


def main(seconds: float) -> None:
    for batch in (1, 8, 32):
        reference(batch, seconds)
    for pattern, dtype in (("fused-native", "float64"), ("fused-onednn", "float32")):
        (backend,) = select([pattern])
        session = backend.open(120)
        for batch in (1, 8):
            mxnet(session, backend.name, batch, dtype, seconds)
        session.stop()


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
