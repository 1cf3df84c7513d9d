"""mxnet-2.0.0b1/unrolled: wrong-shape-accepted, y dx dweight_ih dweight_hh dbias_ih dbias_hh dh0 dc0

An array of a wrong shape is accepted without a word. Seen when: malformed in (head[0], head[2]) (18 of 18
failing, 0 of 2845 passing cases).

No value is expected here: the call itself is what is wrong.
Exits with 1 when the fault shows, with 0 when it does not.
Found by gradbridge 0.1.0 on framework=mxnet version=2.0.0b1 python=3.11.7 numpy=1.26.4 onednn=yes.
"""

import os
import sys

os.environ["MXNET_USE_ONEDNN_RNN"] = "1"  # the RNN kernel; read from the environment
import numpy as np

if "bool" not in vars(np):
    np.bool = np.bool_  # MXNet reads the alias that NumPy 1.24 dropped
import mxnet as mx

np.set_printoptions(precision=17, floatmode="unique")
DTYPE = "float64"
# (T, B, I)
x = np.array([[[0.]]], DTYPE)
# (layers * directions, B, H)
h0 = np.array([[[0.]]], DTYPE)
# head gradients
head_y = np.array([[[1.]],
                   [[1.]]], DTYPE)
WEIGHTS = [  # per layer and direction: input and hidden weights, input and hidden biases
    [
        [
            np.array([[0.],
                 [0.],
                 [0.]], DTYPE),
            np.array([[0.],
                 [0.],
                 [0.]], DTYPE),
            np.array([0., 0., 0.], DTYPE),
            np.array([0., 0., 0.], DTYPE),
        ],
    ],
]


class Identity:
    """An activation that a cell takes as a callable."""

    def __call__(self, inputs):
        return inputs


def run():
    """Forward and backward, on freshly made arrays."""
    xp = mx.np
    arrays = {"x": xp.array(x, dtype=DTYPE), "h0": xp.array(h0, dtype=DTYPE)}
    cells = [
        [mx.gluon.rnn.GRUCell(1, input_size=1), ],
    ]
    parameters, values = {}, {}
    for layer, directions in enumerate(cells):
        for direction, cell in enumerate(directions):
            cell.cast(DTYPE)
            cell.initialize()
            for name, value in zip(("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias"), WEIGHTS[layer][direction]):
                parameters[f"{layer}.{direction}.{name}"] = getattr(cell, name)
                values[f"{layer}.{direction}.{name}"] = value
    for name, parameter in parameters.items():
        parameter.grad_req = "write"
        parameter.set_data(xp.array(values[name], dtype=DTYPE))
    for name in ['h0']:
        arrays[name].attach_grad("write")
    for _ in range(1):
        with mx.autograd.record(train_mode=True):
            y, states = arrays["x"], []
            for layer, directions in enumerate(cells):
                begin = [
                    arrays[name][layer * len(directions) + direction]
                    for direction in range(len(directions))
                    for name in ("h0", "c0")
                    if name in arrays
                ]
                whole = directions[0] if len(directions) == 1 else mx.gluon.rnn.BidirectionalCell(*directions)
                y, ends = whole.unroll(1, y, begin_state=begin, layout="TNC", merge_outputs=True)
                states += ends
            kinds = 1
            states = [xp.stack(states[kind::kinds]) for kind in range(kinds)]
            outputs = [y, *states]
        mx.autograd.backward([outputs[0]], [mx.np.array(head_y, dtype=DTYPE)], train_mode=True)
    found = {"y": y.asnumpy()} | {"d" + name: arrays[name].grad.asnumpy() for name in ['h0']}
    found |= {"d" + name: parameter.grad().asnumpy() for name, parameter in parameters.items()}
    return found


try:
    found = run()
except Exception as error:
    print(f"refused, as it should be: {str(error).strip().splitlines()[-1]}")
    sys.exit(0)
print("accepted without a word: head[0] is one longer than it should be")
for name, value in found.items():
    print(f"{name}:\n{value}")
print("the fault shows")
sys.exit(1)
