"""mxnet-2.0.0b1/gluon-native: own-outputs-as-inputs, dweight_ih

The input weights' gradient is summed with the layer's own outputs in place of the outputs below. Seen when:
mode in (rnn_relu, rnn_tanh) and layers >= 3 (67 of 67 failing, 39 of 924 passing cases).

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
DTYPE = "float32"
# (T, B, I)
x = np.array([[[0.]]], DTYPE)
# (layers * directions, B, H)
h0 = np.array([[[0.1]],
               [[0. ]],
               [[0.1]]], DTYPE)
# weights cell by cell, input before hidden; then the biases alike
params = np.array([0. , 0. , 0. , 0. , 0.1, 0. , 0. , 0. , 0. , 0.1, 0. , 0. ], DTYPE)
# head gradients
head_y = np.array([[[1.]]], DTYPE)
EXPECTED = {
    "dparams": np.array([0.                 , 0.                 , 0.                 , 0.                 ,
         0.09965809602646684, 0.09999006843804564, 0.                 , 0.                 ,
         0.09899679615063212, 0.09899679615063212, 0.9999006694807754 , 0.9999006694807754 ]),
}
TOLERANCE = {"dparams": 9.2e-07}  # rounding in float32 on this case


def run():
    """Forward and backward, on freshly made arrays."""
    xp = mx.np
    arrays = {"x": xp.array(x, dtype=DTYPE), "h0": xp.array(h0, dtype=DTYPE)}
    layer = mx.gluon.rnn.RNN(1, 3, bidirectional=False, input_size=1, dtype=DTYPE, activation='tanh')
    layer.initialize()
    layer.infer_shape(arrays["x"])
    if layer.rnn_param._deferred_init:
        layer.rnn_param._finish_deferred_init()
    parameters = {"params": layer.rnn_param}
    values = {"params": params}
    for name, parameter in parameters.items():
        parameter.grad_req = "write"
        parameter.set_data(xp.array(values[name], dtype=DTYPE))
    for name in ['x']:
        arrays[name].attach_grad("write")
    for _ in range(1):
        with mx.autograd.record(train_mode=True):
            y, states = layer(arrays["x"], [arrays[name] for name in ("h0", "c0") if name in arrays])
            outputs = [y, *states]
        mx.autograd.backward([outputs[0]], [mx.np.array(head_y, dtype=DTYPE)], train_mode=True)
    found = {"y": y.asnumpy()} | {"d" + name: arrays[name].grad.asnumpy() for name in ['x']}
    found |= {"d" + name: parameter.grad().asnumpy() for name, parameter in parameters.items()}
    return found


found = run()
wrong = False
for name, expected in EXPECTED.items():
    print(f"{name} expected:\n{expected}\n{name} found:\n{found[name]}\n")
    wrong |= not np.allclose(found[name], expected, rtol=0, atol=TOLERANCE[name])
print("the fault shows" if wrong else "the fault does not show")
sys.exit(1 if wrong else 0)
