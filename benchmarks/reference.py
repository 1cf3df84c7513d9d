"""The reference against ``torch.nn`` (float64, CPU, one thread each): forward and all gradients.

    python benchmarks/reference.py [SECONDS_PER_ROW]

Prints both times, the ratio of reference to torch, and how far apart their gradients are. Needs PyTorch.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from timing import against, interleaved

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from random_cases import random_case

from bridge.case import Case
from bridge.reference import gradients

SIZES = (
    {"T": 200, "B": 32, "I": 64, "H": 128, "scale": 128**-0.5},
    {"T": 5, "B": 1, "I": 2, "H": 3, "scale": 3**-0.5},
)
MODULES = {"rnn_tanh": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}


def by_torch(case: Case) -> Callable[[], list[torch.Tensor]]:
    """Return a call that runs the case through torch and gives dx, dh0 (dc0) and the parameters' gradients."""
    module = MODULES[case.mode](case.input_size, case.hidden_size, case.layers, bidirectional=case.bidirectional)
    module = module.double()
    weights = [array for directions in case.params for weights in directions for array in weights]
    for parameter, array in zip(module.parameters(), weights, strict=True):
        parameter.data = torch.tensor(array)
    x, h0 = (torch.tensor(array, requires_grad=True) for array in (case.x, case.h0))
    states = [h0] if case.c0 is None else [h0, torch.tensor(case.c0, requires_grad=True)]
    head = torch.tensor(case.heads(case.seq_len)[0])

    def call() -> list[torch.Tensor]:
        y, _ = module(x, tuple(states) if len(states) > 1 else h0)
        return list(torch.autograd.grad(y, [x, *states, *module.parameters()], head))

    return call


def apart(case: Case, theirs: list[torch.Tensor]) -> float:
    """Largest difference of a gradient, relative to the gradient's largest element."""
    ours = gradients(case)
    flat = [ours["dx"], ours["dh0"], *([ours["dc0"]] if "dc0" in ours else [])]
    names = ("dweight_ih", "dweight_hh", "dbias_ih", "dbias_hh")
    places = [(k, d) for k in range(case.layers) for d in range(case.directions)]
    flat += [ours[name][k][d] for k, d in places for name in names]
    return max(np.abs(a - b.numpy()).max() / np.abs(a).max() for a, b in zip(flat, theirs, strict=True))


def main(seconds: float) -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, numpy {np.__version__}; reference, torch, reference / torch")
    with threadpool_limits(limits=1):
        for size in SIZES:
            for mode in MODULES:
                for layers, bidirectional in ((1, False), (2, True)):
                    fixed = {"mode": mode, "layers": layers, "bidirectional": bidirectional, "dtype": "float64"}
                    case = random_case(np.random.default_rng(1), head="given", **fixed, **size)
                    peer = by_torch(case)
                    taken = interleaved({"ours": lambda case=case: gradients(case), "peer": peer}, seconds)
                    shape = f"T={size['T']} B={size['B']} I={size['I']} H={size['H']}"
                    what = f"{mode:8} {layers} layer{'s, bidirectional' if bidirectional else ''}"
                    line = against(taken["ours"], taken["peer"])
                    print(f"{shape:24} {what:33} {line}; gradients {apart(case, peer()):.1e} apart", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
