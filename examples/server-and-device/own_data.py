"""Data that a device has and its server does not: noisy handwritten digits, dark on light.

    python own_data.py my.npz

An .npz file for `wattune run --data` holds ``images``, (N, channels, height, width), and ``labels``, integers from 0.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images, labels = (
    images[labels >= 5],
    labels[labels >= 5] - 5,
)  # the served model is pre-trained on 0 to 4 and learns 5 to 9
images = (1 - images / 16).reshape(-1, 1, 8, 8).repeat(4, axis=2).repeat(4, axis=3)
images += np.random.default_rng(0).normal(0, 0.2, images.shape)
np.savez(sys.argv[1], images=images.astype(np.float32), labels=labels)
