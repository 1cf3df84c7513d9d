"""What comparing many small cases costs beside the gradient calls themselves.

    python benchmarks/throughput.py [CASES] [ROUNDS] [VARIANT]

Random cases (T and H at most 8, one or two layers, float32 and float64) go through one worker of MXNet's VARIANT, by
default fused-native. The peers are a bare loop in an interpreter of its own, which makes the same arrays, calls
``mx.nd.RNN``, runs backward and reads every gradient, once each; and ``bridge.reference.gradients`` of each case. The
protocol runs each call twice, disturbs the allocator before both (where there are two layers by a call of the same
shapes too), and looks whether inputs were written into; the bare loop does none of that. Starting the processes,
diagnosis and tables are not counted. Printed are seconds: wall, of the processor in this process, and in the other
(medians, smallest to largest); then the ratios. Rounds are interleaved.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from random_cases import random_case

import bridge
from bridge.answers import Task
from bridge.backends.base import LiveBackend, ask_all
from bridge.backends.mxnet import flatten
from bridge.backends.registry import select
from bridge.comparison import Progress, Run
from bridge.tolerance import truth

MODES = ("rnn_tanh", "rnn_relu", "lstm", "gru")
BARE = """
import pickle, sys, time
import numpy
numpy.bool = bool
import mxnet as mx
calls = pickle.load(open(sys.argv[1], "rb"))
for _ in range(2):  # the first warms up
    began, used = time.perf_counter(), time.process_time()
    for arrays, requested, heads, dtype, options in calls:
        given = {name: mx.nd.array(array, dtype=dtype) for name, array in arrays.items()}
        for name in requested:
            given[name].attach_grad()
        with mx.autograd.record():
            outputs = mx.nd.RNN(*given.values(), state_outputs=True, **options)
        pairs = [(output, mx.nd.array(head, dtype=dtype)) for output, head in zip(outputs, heads) if head is not None]
        mx.autograd.backward([output for output, _ in pairs], [head for _, head in pairs])
        found = [outputs[0].asnumpy(), *(given[name].grad.asnumpy() for name in requested)]
print(time.perf_counter() - began, time.process_time() - used)
"""

Seconds = tuple[float, float, float]
"""Wall, of the processor in this process, in the other."""


def drawn(count: int) -> list[bridge.Case]:
    rng = np.random.default_rng(7)
    sizes = [{"T": int(rng.integers(1, 9)), "H": int(rng.integers(1, 9))} for _ in range(count)]
    return [random_case(rng, name=f"case-{n}", mode=MODES[n % 4], seq_lens=(), **one) for n, one in enumerate(sizes)]


def bare(cases: list[bridge.Case], backend: LiveBackend) -> Seconds:
    calls = []
    for case in cases:
        states = {"h0": case.h0} | ({} if case.c0 is None else {"c0": case.c0})
        options = {"mode": case.mode, "state_size": case.hidden_size, "num_layers": case.layers}
        options["bidirectional"] = case.bidirectional
        arrays = {"x": case.x, "params": flatten(case.params), **states}
        calls.append((arrays, case.requested, case.heads(), case.dtype, options))
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        pickle.dump(calls, file)
        file.flush()
        env = os.environ | {"OMP_NUM_THREADS": "1"} | dict(backend.launch.env)
        command = [sys.executable, "-c", BARE, file.name]
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    wall, processor = map(float, done.stdout.split())
    return wall, 0.0, processor


def ours(cases: list[bridge.Case], tasks: list[Task], backend: LiveBackend) -> dict[str, Seconds]:
    run = Run(cases, [backend], None, False, Progress())
    session = run.sessions[backend.name]
    session.start()

    def clocked(work: Callable[[], object]) -> Seconds:
        def now() -> Seconds:
            return time.perf_counter(), time.process_time(), sum(session.worker._process.cpu_times()[:2])

        before = now()
        work()
        return tuple(after - one for after, one in zip(now(), before, strict=True))

    def collect() -> None:
        run.collect(lambda: run.truths.update(enumerate(map(truth, tasks))))

    list(ask_all(session, tasks[:20]))
    found = {
        "the reference": clocked(lambda: [bridge.reference.gradients(case) for case in cases]),
        "asking the worker": clocked(lambda: list(ask_all(session, tasks))),
        "the reference and its noise": clocked(lambda: [truth(task) for task in tasks]),
        "the last two at once": clocked(collect),
        "judging": clocked(run._judge),
    }
    run.close()
    return found


def main(count: int, rounds: int, variant: str) -> None:
    (backend,) = select([f"mxnet-*/{variant}"])
    cases = drawn(count)
    tasks = [Task(case, case.seq_len) for case in cases]
    found: dict[str, list[Seconds]] = {}
    with threadpool_limits(limits=1):
        for _ in range(rounds):
            for name, seconds in ({"the bare loop": bare(cases, backend)} | ours(cases, tasks, backend)).items():
                found.setdefault(name, []).append(seconds)
    print(f"{count} cases through {variant}, load {os.getloadavg()[0]:.1f}: wall, processor here, processor there")
    for name, rows in found.items():
        columns = zip(*rows, strict=True)
        print(f"{name:28}", *(f"{median(one):6.2f} ({min(one):.2f} to {max(one):.2f})" for one in columns))
    middle = {name: np.median(rows, axis=0) for name, rows in found.items()}
    whole = middle["the last two at once"] + middle["judging"]
    for word, times in (("once", 1), ("twice", 2)):
        peer = times * middle["the bare loop"] + middle["the reference"]
        ratios = f"{whole[0] / peer[0]:.2f} wall, {whole[1:].sum() / peer[1:].sum():.2f} processor"
        print(f"the whole to the bare loop {word} and the reference: {ratios}")
    worker = middle["asking the worker"][2] / middle["the bare loop"][2]
    judged = (middle["the reference and its noise"] + middle["judging"])[1] / middle["the reference"][1]
    print(f"the worker to the bare loop {worker:.2f}, noise and judging to the reference {judged:.2f}, processor")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:3]]
    main(*numbers, *(2000, 3)[len(numbers) :], sys.argv[3] if len(sys.argv) > 3 else "fused-native")
