"""A backend whose dx is twice what it should be."""

import bridge
from bridge.answers import Answer, Reply


class Doubling:
    info = {"framework": "doubling"}  # noqa: RUF012

    def disturb(self):
        pass

    def run(self, task, variant):
        case = task.case
        grads = bridge.reference.gradients(case, task.seq_len, task.loss_step)
        grads["dx"] = 2 * grads["dx"]
        return Reply({name: Answer(grads[name]) for name in case.quantities})


def open_backend():
    return Doubling()
