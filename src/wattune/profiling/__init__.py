"""From a device and what trains on it, a workload or any program, to a table of step times and powers.

Names are loaded when they are first used: profiling a program needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattune.profiling.confirmation import confirm as confirm
    from wattune.profiling.key import profile_key as profile_key
    from wattune.profiling.profile import profile as profile
    from wattune.profiling.program.profile_command import profile_command as profile_command
    from wattune.profiling.strategies import STRATEGIES as STRATEGIES

_HOMES = {
    "STRATEGIES": "strategies",
    "confirm": "confirmation",
    "profile": "profile",
    "profile_command": "program.profile_command",
    "profile_key": "key",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
