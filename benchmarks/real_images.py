"""The real-images example on photographs of your own: `python -m benchmarks real_images FOLDER`.

FOLDER holds the files that examples/real-images/workload.toml names: pretraining/{train,test}.npz with many classes and
cifar10/{train,test}.npz with ten. Samples to target come from real training runs; the board is simulated.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import wattune
from benchmarks.timing import keep
from wattune.records import Comparison, SampleEfficiency, TrainingRecord

EXAMPLE = Path(__file__).parent.parent / "examples" / "real-images"
DEVICE, CAP_W = "sim:jetson-nano", 4.5


def main(arguments: list[str]) -> None:
    """Pre-train, run, compare, and store the results."""
    source = Path(arguments[0]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "real-images"
        shutil.copytree(EXAMPLE, folder)
        for part in ("pretraining", "cifar10"):
            (folder / part).symlink_to(source / part)
        images = ["pretraining/train.npz", "pretraining/test.npz", "resnet8.safetensors"]
        subprocess.run([sys.executable, "pretrain.py", *images], cwd=folder, check=True)
        workload = folder / "workload.toml"
        wattune.profile(DEVICE, workload).save(folder / "profile.json")
        run = folder / "run"
        wattune.run(DEVICE, workload, cap_w=CAP_W, profile=folder / "profile.json", compare=True, output=run)
        efficiency = SampleEfficiency.load(run / "efficiency.json")
        training = TrainingRecord.load(run / "training.json")
        comparison = Comparison.load(run / "comparison.json")
        with np.load(folder / "cifar10" / "train.npz") as file:
            train = len(file["labels"])
    keep(
        "real_images",
        {
            "device": DEVICE,
            "cap_w": CAP_W,
            "images": train,
            "seeds": len(comparison.seeds),
            "target": training.target,
            "proxy_target": efficiency.target,
            "relative_samples": {str(p.batch_size): p.relative_samples for p in efficiency.points},
            "training": training.model_dump(mode="json", include={"reached", "samples", "time_s", "energy_j"}),
            "profiling_share": training.profiling_share,
            "pays_after_trainings": training.pays_after_trainings,
            "rows": [row.model_dump(mode="json") for row in comparison.rows],
        },
    )
