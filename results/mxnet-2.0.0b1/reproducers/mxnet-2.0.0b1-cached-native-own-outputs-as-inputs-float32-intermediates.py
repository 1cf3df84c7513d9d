"""mxnet-2.0.0b1/cached-native: own-outputs-as-inputs+float32-intermediates, y dx dweight_ih dweight_hh dbias_ih dbias_hh dh0

The input weights' gradient is summed with the layer's own outputs in place of the outputs below and a float64
result carries float32 rounding: something in between is computed in float32. Seen when: mode == rnn_relu and
layers >= 3 (26 of 26 failing, 18 of 921 passing cases).

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
h0 = np.array([[[0.1]],
               [[0. ]],
               [[0.1]]], DTYPE)
# weights cell by cell, input before hidden; then the biases alike
params = np.array([0. , 0. , 0. , 0. , 0.1, 0. , 0. , 0. , 0. , 0.1, 0. , 0. ], DTYPE)
# head gradients
head_y = np.array([[[1.]]], DTYPE)
EXPECTED = {
    "y": np.array([[[0.010000000000000002]]]),
    "dx": np.array([[[0.]]]),
    "dparams": np.array([0. , 0. , 0. , 0. , 0.1, 0.1, 0. , 0. , 0.1, 0.1, 1. , 1. ]),
}
TOLERANCE = {"y": 4.6e-17, "dx": 3.6e-307, "dparams": 1.2e-15}  # rounding in float64 on this case


def run():
    """Forward and backward, on freshly made arrays."""
    arrays = {"x": mx.nd.array(x, dtype=DTYPE), "params": mx.nd.array(params, dtype=DTYPE), "h0": mx.nd.array(h0, dtype=DTYPE)}
    for name in ('x', 'params'):
        arrays[name].attach_grad("write")
    options = {'mode': 'rnn_relu', 'state_size': 1, 'num_layers': 3, 'bidirectional': False, 'state_outputs': True}
    call = mx.nd.CachedOp(mx.sym.RNN(*[mx.sym.var(name) for name in arrays], **options))
    with mx.autograd.record(train_mode=True):
        outputs = call(*arrays.values())
    mx.autograd.backward([outputs[0]], [mx.nd.array(head_y, dtype=DTYPE)], train_mode=True)
    found = {"y": outputs[0].asnumpy()}
    return found | {"d" + name: arrays[name].grad.asnumpy() for name in ('x', 'params')}


found = run()
wrong = False
for name, expected in EXPECTED.items():
    print(f"{name} expected:\n{expected}\n{name} found:\n{found[name]}\n")
    wrong |= not np.allclose(found[name], expected, rtol=0, atol=TOLERANCE[name])
print("the fault shows" if wrong else "the fault does not show")
sys.exit(1 if wrong else 0)
