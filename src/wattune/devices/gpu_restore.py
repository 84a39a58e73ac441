"""Brings back what was set on NVIDIA GPUs, also what processes have left behind that were killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wattune.devices.held import Held, held_gpus, usual_folders
from wattune.devices.nvml import Gpu
from wattune.errors import BoardUnusable, DeviceError


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

    Raises: DeviceError, after all that can be brought back is; what cannot stays kept.
    """
    done: list[str] = []
    failures: list[DeviceError] = []
    places = [state] if state is not None else usual_folders()
    for held in [Held(place, uuid) for place in places for uuid in held_gpus(place)]:
        try:
            held.claim()
        except BoardUnusable:
            continue  # its process is at work
        try:
            done += _restored(held)
        except DeviceError as error:
            failures.append(error)
        finally:
            held.let_go()
    if failures:
        raise failures[0] if len(failures) == 1 else DeviceError("; ".join(map(str, failures)))
    return done


def _restored(held: Held) -> list[str]:
    kept = held.read()
    if kept is None:
        return []
    gpu = Gpu(kept["uuid"])
    try:
        said = f"{gpu.name}: {bring_back(gpu, kept)}"
    finally:
        gpu.close()
    held.release()
    return [said]
