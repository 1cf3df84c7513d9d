"""mxnet-2.0.0b1/gluon-onednn: wrong-shape-accepted, y dx dh0 dweight_ih dweight_hh dbias_ih dbias_hh

An array of a wrong shape is accepted without a word. Seen when: malformed in (head[0], head[1], head[2]) (20 of
20 failing, 0 of 1140 passing cases).

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
DTYPE = "float32"
# (T, B, I)
x = np.array([[[0.]]], DTYPE)
# (layers * directions, B, H)
h0 = np.array([[[0.]]], DTYPE)
# weights cell by cell, input before hidden; then the biases alike
params = np.array([0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.], DTYPE)
# head gradients
head_y = np.array([[[1., 1.]]], DTYPE)


def run():
    """Forward and backward, on freshly made arrays."""
    xp = mx.np
    arrays = {"x": xp.array(x, dtype=DTYPE), "h0": xp.array(h0, dtype=DTYPE)}
    layer = mx.gluon.rnn.GRU(1, 1, bidirectional=False, input_size=1, dtype=DTYPE)
    layer.initialize()
    layer.infer_shape(arrays["x"])
    if layer.rnn_param._deferred_init:
        layer.rnn_param._finish_deferred_init()
    parameters = {"params": layer.rnn_param}
    values = {"params": params}
    for name, parameter in parameters.items():
        parameter.grad_req = "write"
        parameter.set_data(xp.array(values[name], dtype=DTYPE))
    for name in ['x', 'h0']:
        arrays[name].attach_grad("write")
    for _ in range(1):
        with mx.autograd.record(train_mode=True):
            y, states = layer(arrays["x"], [arrays[name] for name in ("h0", "c0") if name in arrays])
            outputs = [y, *states]
        mx.autograd.backward([outputs[0]], [mx.np.array(head_y, dtype=DTYPE)], train_mode=True)
    found = {"y": y.asnumpy()} | {"d" + name: arrays[name].grad.asnumpy() for name in ['x', 'h0']}
    found |= {"d" + name: parameter.grad().asnumpy() for name, parameter in parameters.items()}
    return found


try:
    found = run()
except Exception as error:
    print(f"refused, as it should be: {str(error).strip().splitlines()[-1]}")
    sys.exit(0)
print("accepted without a word: head[2] is one longer than it should be")
for name, value in found.items():
    print(f"{name}:\n{value}")
print("the fault shows")
sys.exit(1)
