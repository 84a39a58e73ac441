"""Check of the installed torch: its version, its CUDA build, the GPU that it can use."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from wattune.doctor.finding import Finding

_QUERY = """
import json
import torch
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": gpu}))
"""
IMPORT_TIMEOUT_S = 180.0
"""Timeout for importing torch: on a small board with a slow card the first import takes minutes."""


@dataclass(frozen=True)
class Torch:
    """Installed torch: its version, the CUDA it was built for (None: a CPU build), the GPU it can use (None: no GPU),
    or why it cannot be loaded."""

    version: str | None = None
    cuda: str | None = None
    gpu: str | None = None
    failure: str = ""


def installed_torch(python: str = sys.executable) -> Torch:
    """The installed torch, imported in a process of its own: one built for another board may crash it."""
    command = [python, "-c", _QUERY]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Torch(failure=f"importing torch failed: {error}")
    if result.returncode < 0:
        return Torch(failure=f"importing torch was ended by signal {-result.returncode}")
    lines = result.stdout.strip().splitlines()
    if result.returncode or not lines:
        return Torch(failure=(result.stderr.strip().splitlines() or ["importing torch failed"])[-1])
    properties = json.loads(lines[-1])
    return Torch(properties["torch"], properties["cuda"], properties["gpu"])


def check_torch(torch: Torch, *, needs_gpu: bool) -> Finding:
    """Check that this torch trains on the processor whose power is measured."""
    if torch.version is None:
        return Finding(
            "torch",
            "fail",
            f"torch cannot be loaded: {torch.failure}",
            "install the torch of your board, see docs/boards.md; `wattune guard` works without it",
        )
    if torch.gpu is not None:
        return Finding("torch", "ok", f"torch {torch.version} with CUDA {torch.cuda}, on {torch.gpu}")
    if not needs_gpu:
        return Finding("torch", "ok", f"torch {torch.version}, on the CPU")
    if torch.cuda is None:
        return Finding(
            "torch",
            "fail",
            f"torch {torch.version} is a CPU build: training would leave the GPU idle, and its clock without effect",
            "install NVIDIA's torch wheel for your JetPack, see docs/boards.md",
        )
    return Finding(
        "torch",
        "fail",
        f"torch {torch.version} is built for CUDA {torch.cuda}, but finds no GPU",
        "on a Jetson, install NVIDIA's torch wheel for your JetPack; elsewhere, check that nvidia-smi works; start "
        "containers with --runtime nvidia; see docs/boards.md",
    )
