"""mxnet-2.0.0b1/fused-native: wrong-shape-accepted, y dweight_ih dweight_hh dbias_ih dbias_hh dh0 dx dc0

An array of a wrong shape is accepted without a word. Seen when: malformed in (head[0], head[1], head[2]) (44 of
44 failing, 0 of 920 passing cases).

No value is expected here: the call itself is what is wrong.
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
h0 = np.array([[[0.]]], DTYPE)
# weights cell by cell, input before hidden; then the biases alike
params = np.array([0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.], DTYPE)
# head gradients
head_y = np.array([[[1., 1.]]], DTYPE)


def run():
    """Forward and backward, on freshly made arrays."""
    arrays = {"x": mx.nd.array(x, dtype=DTYPE), "params": mx.nd.array(params, dtype=DTYPE), "h0": mx.nd.array(h0, dtype=DTYPE)}
    for name in ('x', 'params', 'h0'):
        arrays[name].attach_grad("write")
    options = {'mode': 'gru', 'state_size': 1, 'num_layers': 1, 'bidirectional': False, 'state_outputs': True}
    with mx.autograd.record(train_mode=True):
        outputs = mx.nd.RNN(*arrays.values(), **options)
    mx.autograd.backward([outputs[0]], [mx.nd.array(head_y, dtype=DTYPE)], train_mode=True)
    found = {"y": outputs[0].asnumpy()}
    return found | {"d" + name: arrays[name].grad.asnumpy() for name in ('x', 'params', 'h0')}


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
