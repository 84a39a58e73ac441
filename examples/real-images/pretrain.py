"""Pre-train a ResNet-8 on your own images and save its weights for workload.toml.

    python pretrain.py train.npz test.npz resnet8.safetensors --passes 6

The .npz files hold ``images``, uint8 (N, 3, 32, 32), and ``labels``, integers from 0.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from wattune.workloads import Augmentation, Model, OptimizerRule, Workload
from wattune.workloads.models import resnet8
from wattune.workloads.npz import Npz

BATCH_SIZE = 128


def main() -> None:
    """Train for a number of passes over the images, and print the accuracy after each."""
    parser = argparse.ArgumentParser(description="Pre-train a ResNet-8")
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--passes", type=int, default=6)
    arguments = parser.parse_args()
    with np.load(arguments.train) as file:
        labels = file["labels"]
    steps = len(labels) // BATCH_SIZE  # per pass
    workload = Workload(
        "pre-training",
        model=Model(resnet8, {"classes": int(labels.max()) + 1}),
        data=Npz(arguments.train, arguments.test),
        input_shape=(3, 32, 32),
        batch_sizes=(BATCH_SIZE,),
        budget_samples=arguments.passes * steps * BATCH_SIZE,
        optimizer=OptimizerRule("adam", learning_rate=3e-3, reference_batch_size=BATCH_SIZE),
        augmentation=Augmentation(flip=True, shift=4),
    )
    workload.check()
    model = workload.model(0)
    optimizer = workload.optimizer(model, BATCH_SIZE)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=arguments.passes * steps)
    batches = workload.batches(BATCH_SIZE, seed=0)
    for number in range(1, arguments.passes + 1):
        model.train()
        for x, y in itertools.islice(batches, steps):
            optimizer.zero_grad()
            workload.loss(model(x), y).backward()
            optimizer.step()
            rate.step()
        print(f"pass {number}: accuracy {workload.evaluate(model):.3f}", flush=True)
    save_file(model.state_dict(), arguments.weights)


if __name__ == "__main__":
    main()
