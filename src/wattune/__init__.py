"""wattune: train fastest under a power cap, batch size and GPU clock chosen together.

Public names are loaded when they are first used, so that ``import wattune`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from wattune.version import __version__

if TYPE_CHECKING:
    from wattune.devices import open_device
    from wattune.errors import (
        BoardUnusable,
        CapError,
        DeviceError,
        InputError,
        Interrupted,
        NoPoint,
        OutOfDeviceMemory,
        OutputError,
        RecordError,
        SafetyStop,
        SensorError,
        ServerAway,
        ServerError,
        ServerRefused,
        TargetNotReached,
        UnknownName,
        WattuneError,
        WorkloadError,
    )
    from wattune.pipeline import run
    from wattune.records import Comparison, EfficiencyCurve, Plan, ProfileTable, SessionRecord, TrainingRecord
    from wattune.reporting import write_report
    from wattune.session import capped
    from wattune.stages import compare, estimate, plan, profile, profile_command, train
    from wattune.workloads import (
        Augmentation,
        Data,
        Loaders,
        Metric,
        Model,
        OptimizerRule,
        Workload,
        example_workload,
        load_workload,
    )

__all__ = [
    "Augmentation",
    "BoardUnusable",
    "CapError",
    "Comparison",
    "Data",
    "DeviceError",
    "EfficiencyCurve",
    "InputError",
    "Interrupted",
    "Loaders",
    "Metric",
    "Model",
    "NoPoint",
    "OptimizerRule",
    "OutOfDeviceMemory",
    "OutputError",
    "Plan",
    "ProfileTable",
    "RecordError",
    "SafetyStop",
    "SensorError",
    "ServerAway",
    "ServerError",
    "ServerRefused",
    "SessionRecord",
    "TargetNotReached",
    "TrainingRecord",
    "UnknownName",
    "WattuneError",
    "Workload",
    "WorkloadError",
    "__version__",
    "capped",
    "compare",
    "estimate",
    "example_workload",
    "load_workload",
    "open_device",
    "plan",
    "profile",
    "profile_command",
    "run",
    "train",
    "write_report",
]

_HOMES = {
    "wattune.devices": ("open_device",),
    "wattune.errors": (
        "BoardUnusable",
        "CapError",
        "DeviceError",
        "InputError",
        "Interrupted",
        "NoPoint",
        "OutOfDeviceMemory",
        "OutputError",
        "RecordError",
        "SafetyStop",
        "SensorError",
        "ServerAway",
        "ServerError",
        "ServerRefused",
        "TargetNotReached",
        "UnknownName",
        "WattuneError",
        "WorkloadError",
    ),
    "wattune.pipeline": ("run",),
    "wattune.records": ("Comparison", "EfficiencyCurve", "Plan", "ProfileTable", "SessionRecord", "TrainingRecord"),
    "wattune.reporting": ("write_report",),
    "wattune.session": ("capped",),
    "wattune.stages": ("compare", "estimate", "plan", "profile", "profile_command", "train"),
    "wattune.workloads": (
        "Augmentation",
        "Data",
        "Loaders",
        "Metric",
        "Model",
        "OptimizerRule",
        "Workload",
        "example_workload",
        "load_workload",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'wattune' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
