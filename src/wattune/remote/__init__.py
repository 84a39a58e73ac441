"""Client side of a wattune server (models, sweeps, curves, profiles and records over HTTP), and names of Ray clusters.

Names are loaded when they are first used: naming a cluster needs no HTTP client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattune.remote.client import Client
    from wattune.remote.executor import cluster_address
    from wattune.remote.reporter import Reporter

__all__ = ["Client", "Reporter", "cluster_address"]

_HOMES = {"Client": "client", "Reporter": "reporter", "cluster_address": "executor"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
