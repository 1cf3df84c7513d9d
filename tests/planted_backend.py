"""A backend with a fault of the catalogue planted in it, or none; the reference computes it in the case's dtype."""

import os
import time

import numpy as np

import bridge
from bridge.answers import SPECIAL, Answer, Reply, Task
from bridge.backends.base import LiveBackend
from bridge.errors import UnsupportedError
from bridge.faults import CATALOGUE, gradients
from bridge.reference import accumulated
from bridge.workers import Launch


def planted(fault="", slow=0.0):
    """The backend, to be run in a worker; ``fault`` out of the catalogue, or ``kill``, or ``shapes``."""
    launch = Launch("planted_backend", {"fault": fault, "slow": slow}, path=(os.path.dirname(__file__),))
    return LiveBackend(f"planted-1/{fault or 'right'}", "", launch, understands=SPECIAL)


class Planted:
    def __init__(self, fault, slow):
        self.fault, self.slow = fault, slow
        self.info = {"framework": "planted", "version": "1"}

    def disturb(self):
        pass

    def run(self, task, variant):
        time.sleep(self.slow)
        case = task.case
        if self.fault == "kill" and case.mode == "gru":
            os._exit(7)
        if task.malformed and self.fault != "shapes":
            raise UnsupportedError(f"{task.malformed} has the wrong shape")
        found = self.gradients(Task(case, task.seq_len, accumulate=task.accumulate))
        answers = {name: Answer(rounded(found[name], case.dtype)) for name in case.quantities}
        if self.fault == "nothing-returned" and "x" in case.requested:
            answers["dx"] = Answer(nothing=True)
        return Reply(answers)

    def gradients(self, task):
        case = task.case
        if self.fault == "float32-intermediates":
            found = bridge.reference.gradients(case, dtype="float32")
            return accumulated({name: rounded(value, "float64") for name, value in found.items()}, task.accumulate)
        variants = CATALOGUE[self.fault].variants(case) if self.fault in CATALOGUE else ()
        fault = next(iter(variants), None)
        if fault is None:
            right = bridge.reference.gradients(case, dtype=case.dtype)
            return accumulated(right, task.accumulate)
        return gradients(task, [fault])


def rounded(value, dtype):
    if isinstance(value, tuple):
        return tuple(tuple(np.asarray(array, dtype) for array in row) for row in value)
    return np.asarray(value, dtype)


class Here:
    """The same without a worker: for tests that sweep much in one process."""

    source, varies, understands, workarounds = "live", True, SPECIAL, ()

    def __init__(self, fault):
        self.name = self.group = f"planted-1/{fault or 'right'}"
        self.about = ""
        self.served = Planted(fault, 0.0)

    def open(self, timeout, says=None, workers=None):
        return self

    def start(self):
        return self.served.info

    def ask(self, task):
        from bridge.serve import answer

        return answer(self.served, task, "")

    def stop(self):
        pass


def open_backend(fault, slow):
    return Planted(fault, slow)
