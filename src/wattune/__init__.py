"""wattune: train fastest under a power cap, batch size and GPU clock chosen together.

Public names are loaded when they are first used, so that ``import wattune`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from wattune.version import __version__

if TYPE_CHECKING:
    from wattune.cap import PowerCap
    from wattune.cap_source import CapTrace
    from wattune.devices import open_device
    from wattune.errors import (
        CapError,
        DeviceError,
        DeviceUnavailable,
        InputError,
        Interrupted,
        NoFeasiblePoint,
        OutOfDeviceMemory,
        OutputError,
        RecordError,
        SafetyStop,
        SensorError,
        ServerError,
        ServerRefused,
        ServerUnavailable,
        TargetNotReached,
        UnknownName,
        WattuneError,
        WorkloadError,
    )
    from wattune.goal import Goal
    from wattune.job.config import RunConfig
    from wattune.job.run import run
    from wattune.job.steps import compare, estimate, plan, profile, profile_command, train
    from wattune.online.capped import capped
    from wattune.power.run_update import RunUpdate
    from wattune.records import Comparison, Plan, ProfileTable, SampleEfficiency, SessionRecord, TrainingRecord
    from wattune.reporting import write_report
    from wattune.tracking.metered_block import meter
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
    "CapError",
    "CapTrace",
    "Comparison",
    "Data",
    "DeviceError",
    "DeviceUnavailable",
    "Goal",
    "InputError",
    "Interrupted",
    "Loaders",
    "Metric",
    "Model",
    "NoFeasiblePoint",
    "OptimizerRule",
    "OutOfDeviceMemory",
    "OutputError",
    "Plan",
    "PowerCap",
    "ProfileTable",
    "RecordError",
    "RunConfig",
    "RunUpdate",
    "SafetyStop",
    "SampleEfficiency",
    "SensorError",
    "ServerError",
    "ServerRefused",
    "ServerUnavailable",
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
    "meter",
    "open_device",
    "plan",
    "profile",
    "profile_command",
    "run",
    "train",
    "write_report",
]

_HOMES = {
    "wattune.cap": ("PowerCap",),
    "wattune.cap_source": ("CapTrace",),
    "wattune.devices": ("open_device",),
    "wattune.goal": ("Goal",),
    "wattune.errors": (
        "DeviceUnavailable",
        "CapError",
        "DeviceError",
        "InputError",
        "Interrupted",
        "NoFeasiblePoint",
        "OutOfDeviceMemory",
        "OutputError",
        "RecordError",
        "SafetyStop",
        "SensorError",
        "ServerError",
        "ServerRefused",
        "ServerUnavailable",
        "TargetNotReached",
        "UnknownName",
        "WattuneError",
        "WorkloadError",
    ),
    "wattune.job.run": ("run",),
    "wattune.job.steps": ("compare", "estimate", "plan", "profile", "profile_command", "train"),
    "wattune.job.config": ("RunConfig",),
    "wattune.power.run_update": ("RunUpdate",),
    "wattune.records": ("Comparison", "SampleEfficiency", "Plan", "ProfileTable", "SessionRecord", "TrainingRecord"),
    "wattune.reporting": ("write_report",),
    "wattune.tracking.metered_block": ("meter",),
    "wattune.online": ("capped",),
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
