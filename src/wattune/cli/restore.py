"""Command ``wattune restore``: restore boards that a killed process left changed."""

from __future__ import annotations

from wattune.cli.options import Json, configured
from wattune.cli.output import tell
from wattune.job.config import RunConfig


@configured("sysfs_root")
def restore(config: RunConfig, as_json: Json = False) -> None:
    """Restore clocks that a killed process left changed.

    A process that finishes, or that is ended by an error, Ctrl-C or a signal, restores them already.

    \b
    Example:  sudo wattune restore
    """
    from wattune.devices.real_time import mapped
    from wattune_agent.leftover import restore_left_behind
    from wattune_agent.tree import Tree

    sysfs_root = config.sysfs_root
    with mapped():
        messages = restore_left_behind(Tree("/" if sysfs_root is None else str(sysfs_root)))
    tell({"restored": messages}, "\n".join(messages) or "nothing to restore", as_json=as_json)
