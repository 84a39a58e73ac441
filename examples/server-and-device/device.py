"""A device that fetches its model from a server and trains it on local data.

    python device.py http://127.0.0.1:8484 sim:jetson-nano 4.6 my.npz

Equivalent to `wattune run --server URL --model resnet8-digits --device DEVICE --cap WATTS --data FILE`.
"""

import sys

import numpy as np

import wattune

url, device, cap_w, file = sys.argv[1:]
with np.load(file) as arrays:
    images, labels = arrays["images"], arrays["labels"]

# Data may be arrays, loaders or the path of a file; none of it leaves this process.
held_out = np.arange(len(images)) % 4 == 0
data = wattune.Data((images[~held_out], labels[~held_out]), (images[held_out], labels[held_out]))

record = wattune.run(device, server=url, model="resnet8-digits", data=data, cap_w=float(cap_w))
plan = record.plan
print(f"{device}: batch size {plan.batch_size} at {plan.clock_mhz:g} MHz, reached: {record.reached}")
