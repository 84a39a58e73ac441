"""The values of ``--executor`` and ``--on``: where proxy runs are trained other than on this machine."""

from __future__ import annotations

from importlib.util import find_spec

from wattune.errors import InputError


class ClusterUnavailable(InputError):
    """No Ray cluster answers at the address."""


def cluster_address(executor: str, allowed: str = "ray or ray:ADDRESS") -> str:
    """Address of the cluster that ``executor`` names: "ray" is one on this machine, "ray:ADDRESS" another.

    Raises: InputError for anything else, and if Ray is not installed.
    """
    kind, _, address = executor.partition(":")
    if kind != "ray" or executor == "ray:":
        raise InputError("executor", value=executor, allowed=allowed)
    if find_spec("ray") is None:
        raise InputError("Ray is not installed", value=executor, hint="pip install 'wattune[cluster]'")
    return address or "local"
