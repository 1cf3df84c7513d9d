"""mxnet-2.0.0b1/gluon-native: float32-intermediates, y dweight_ih dweight_hh dbias_ih dbias_hh dh0 dx

A float64 result carries float32 rounding: something in between is computed in float32. Seen when: mode ==
rnn_relu and dtype == float64 (106 of 106 failing, 19 of 924 passing cases).

The expected values come from backpropagation through time in NumPy (float64, proven by complex-step
differentiation), the tolerance from simulated rounding noise on this very case.
Exits with 1 when the fault shows, with 0 when it does not.
Found by gradbridge 0.1.0 on framework=mxnet version=2.0.0b1 python=3.11.7 numpy=1.26.4 onednn=yes.
"""

import os
import sys

os.environ["MXNET_USE_ONEDNN_RNN"] = "0"  # the RNN kernel; read from the environment
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
# weights cell by cell, input before hidden; then the biases alike
params = np.array([0. , 0. , 0. , 0.1], DTYPE)
# head gradients
head_y = np.array([[[1.]]], DTYPE)
EXPECTED = {
    "y": np.array([[[0.1]]]),
    "dh0": np.array([[[0.]]]),
    "dparams": np.array([0., 0., 1., 1.]),
}
TOLERANCE = {"y": 1.2e-16, "dh0": 3.6e-307, "dparams": 1.4e-15}  # rounding in float64 on this case


def run():
    """Forward and backward, on freshly made arrays."""
    xp = mx.np
    arrays = {"x": xp.array(x, dtype=DTYPE), "h0": xp.array(h0, dtype=DTYPE)}
    layer = mx.gluon.rnn.RNN(1, 1, bidirectional=False, input_size=1, dtype=DTYPE, activation='relu')
    layer.initialize()
    layer.infer_shape(arrays["x"])
    if layer.rnn_param._deferred_init:
        layer.rnn_param._finish_deferred_init()
    parameters = {"params": layer.rnn_param}
    values = {"params": params}
    for name, parameter in parameters.items():
        parameter.grad_req = "write"
        parameter.set_data(xp.array(values[name], dtype=DTYPE))
    for name in ['h0']:
        arrays[name].attach_grad("write")
    for _ in range(1):
        with mx.autograd.record(train_mode=True):
            y, states = layer(arrays["x"], [arrays[name] for name in ("h0", "c0") if name in arrays])
            outputs = [y, *states]
        mx.autograd.backward([outputs[0]], [mx.np.array(head_y, dtype=DTYPE)], train_mode=True)
    found = {"y": y.asnumpy()} | {"d" + name: arrays[name].grad.asnumpy() for name in ['h0']}
    found |= {"d" + name: parameter.grad().asnumpy() for name, parameter in parameters.items()}
    return found


found = run()
wrong = False
for name, expected in EXPECTED.items():
    print(f"{name} expected:\n{expected}\n{name} found:\n{found[name]}\n")
    wrong |= not np.allclose(found[name], expected, rtol=0, atol=TOLERANCE[name])
print("the fault shows" if wrong else "the fault does not show")
sys.exit(1 if wrong else 0)
