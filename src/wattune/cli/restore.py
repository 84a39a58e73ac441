"""Command ``wattune restore``: restore boards that a killed process left changed."""

from __future__ import annotations

from wattune.cli.options import Json, SysfsRoot
from wattune.cli.output import emit, emit_json
from wattune.errors import InputError


def restore(sysfs_root: SysfsRoot = None, as_json: Json = False) -> None:
    """Restore clocks that a killed process left changed.

    A process that finishes, or that is ended by an error, Ctrl-C or a signal, restores them already.

    \b
    Example:  sudo wattune restore
    """
    if sysfs_root is not None and not (sysfs_root / "sys").is_dir():
        raise InputError("--sysfs-root", value=str(sysfs_root), allowed="a folder with sys/... in it")

    from wattune.devices.real_time import mapped
    from wattune_agent.controller import restore_left_behind
    from wattune_agent.tree import Tree

    with mapped():
        messages = list(restore_left_behind(Tree("/" if sysfs_root is None else str(sysfs_root))))
    if sysfs_root is None:
        from wattune.devices.nvidia.gpu_restore import restore_gpus

        messages += restore_gpus()
    if as_json:
        emit_json({"restored": messages})
    else:
        emit("\n".join(messages) or "nothing to restore")
