"""The torch that is installed here, and whether it can use the board's GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from wattune.doctor.finding import Finding

_ASK = """
import json
import torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": gpu}))
"""
ASK_S = 180.0
"""Longest that importing torch may take: the first time on a small board with a slow card it is minutes."""


@dataclass(frozen=True)
class Torch:
    """``version`` and the CUDA it was built for (None: a CPU build), the GPU it can use (None: none), or why it cannot
    be loaded."""

    version: str | None = None
    cuda: str | None = None
    gpu: str | None = None
    failure: str = ""


def torch_here(python: str = sys.executable) -> Torch:
    """What torch says of itself, asked in a process of its own: one built for another board may end the process."""
    try:
        done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Torch(failure=f"asking torch failed: {error}")
    if done.returncode < 0:
        return Torch(failure=f"importing torch was ended by signal {-done.returncode}")
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return Torch(failure=(done.stderr.strip().splitlines() or ["importing torch failed"])[-1])
    told = json.loads(lines[-1])
    return Torch(told["torch"], told["cuda"], told["gpu"])


def check_torch(torch: Torch, *, needs_gpu: bool) -> Finding:
    """Whether this torch trains on what the power is measured of."""
    if torch.version is None:
        return Finding(
            "torch",
            "fail",
            f"torch cannot be loaded: {torch.failure}",
            "install the torch of your board, see docs/boards.md; `wattune guard` works without one",
        )
    if torch.gpu is not None:
        return Finding("torch", "ok", f"torch {torch.version} with CUDA {torch.cuda}, on {torch.gpu}")
    if not needs_gpu:
        return Finding("torch", "ok", f"torch {torch.version}, on the CPU")
    if torch.cuda is None:
        return Finding(
            "torch",
            "fail",
            f"torch {torch.version} is a CPU build: training would leave the GPU idle, and its clock would say nothing",
            "install NVIDIA's torch wheel for your JetPack, see docs/boards.md",
        )
    return Finding(
        "torch",
        "fail",
        f"torch {torch.version} is built for CUDA {torch.cuda}, but finds no GPU",
        "on a Jetson install NVIDIA's torch wheel for your JetPack, elsewhere see that nvidia-smi works; start a "
        "container with --runtime nvidia; see docs/boards.md",
    )
