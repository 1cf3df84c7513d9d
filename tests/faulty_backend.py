"""A backend with a real fault of each kind, run in a real worker. ``how`` is what it does to a case of that name."""

import os
import signal
import time

import numpy as np

import bridge
from bridge.answers import Answer, Reply
from bridge.errors import UnsupportedError


class Faulty:
    def __init__(self, how):
        self.info = {"framework": "faulty", "version": "1"}
        self.how = how
        self.calls = 0

    def disturb(self):
        pass

    def run(self, task, variant):
        case = task.case
        self.calls += 1
        if case.name.startswith(self.how):
            getattr(self, self.how.replace("-", "_"))()
        grads = bridge.reference.gradients(case, task.seq_len, task.loss_step)
        if self.how == "unsteady" and case.name.startswith(self.how):
            grads["dx"] = grads["dx"] * (1 + self.calls)
        return Reply({name: Answer(grads[name]) for name in case.quantities})

    def unsteady(self):
        pass

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def segfault(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave(self):
        os._exit(7)

    def sleep(self):
        time.sleep(600)

    def raises(self):
        raise RuntimeError("the first line\nand a second")

    def refuse(self):
        raise UnsupportedError("not on a Monday")


class Shapeless(Faulty):
    def run(self, task, variant):
        case = task.case
        return Reply({name: Answer(np.zeros((1, 2, 3))) for name in case.quantities})


def open_backend(how):
    if how == "import":
        raise ImportError("no module named nonsense")
    if how == "never-ready":
        time.sleep(600)
    return Shapeless(how) if how == "shapeless" else Faulty(how)
