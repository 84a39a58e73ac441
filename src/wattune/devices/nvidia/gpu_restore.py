"""Restore NVIDIA GPUs, also after a process that was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wattune.devices.nvidia.claims import Held, held_gpus, usual_folders
from wattune.devices.nvidia.nvml import Gpu
from wattune.errors import DeviceError, DeviceUnavailable


def bring_back(gpu: Gpu, kept: dict[str, Any]) -> str:
    """Restore this GPU from its snapshot; return what was restored, in words. Raises: DeviceError.

    The driver does not tell which clock was locked before, so another program's lock is not restored.
    """
    limit_w = kept.get("limit_w")
    if isinstance(limit_w, (int, float)):
        gpu.set_limit(limit_w)
        return f"power limit back to {limit_w:g} W"
    gpu.unlock_clock()
    return "clock no longer locked"


def restore_gpus(state: Path | None = None) -> list[str]:
    """Restore the GPUs that dead processes have left changed; return what was restored, one line each.

    Raises: DeviceError, after every GPU that can be restored is; the snapshots of the others stay on disk.
    """
    done: list[str] = []
    failures: list[DeviceError] = []
    places = [state] if state is not None else usual_folders()
    for held in [Held(place, uuid) for place in places for uuid in held_gpus(place)]:
        try:
            held.claim()
        except DeviceUnavailable:
            continue  # its process is still running
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
