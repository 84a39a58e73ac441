"""Brings back what was set on NVIDIA GPUs, also what processes have left behind that were killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wattune.devices.held import Held, held_gpus, usual_folder
from wattune.devices.nvml import Gpu
from wattune.errors import BoardUnusable


def bring_back(gpu: Gpu, kept: dict[str, Any]) -> str:
    """Bring back what was kept of this GPU; what that was, in words. Raises: DeviceError.

    The driver does not tell which clock was locked before, so a lock of somebody else's is not brought back.
    """
    limit_w = kept.get("limit_w")
    if isinstance(limit_w, (int, float)):
        gpu.set_limit(limit_w)
        return f"power limit back to {limit_w:g} W"
    gpu.unlock_clock()
    return "clock no longer locked"


def restore_gpus(state: Path | None = None) -> list[str]:
    """Bring back what processes that are gone have left on GPUs; says what, one line each.

    Raises: DeviceError where something cannot be brought back; it stays kept.
    """
    folder = state or usual_folder()
    done = []
    for uuid in list(held_gpus(folder)):
        held = Held(folder, uuid)
        try:
            held.claim()
        except BoardUnusable:
            continue  # its process is at work
        try:
            kept = held.read()
            if kept is None:
                continue
            gpu = Gpu(kept["uuid"])
            try:
                done.append(f"{gpu.name}: {bring_back(gpu, kept)}")
            finally:
                gpu.close()
            held.release()
        finally:
            held.let_go()
    return done
