"""wattune: train fastest under a power cap, batch size and GPU clock chosen together.

Public names are loaded when they are first used, so that ``import wattune`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from wattune.version import __version__ as __version__

if TYPE_CHECKING:
    from wattune.cap import PowerCap as PowerCap
    from wattune.cap_source import CapTrace as CapTrace
    from wattune.devices import open_device as open_device
    from wattune.errors import CapError as CapError
    from wattune.errors import DeviceError as DeviceError
    from wattune.errors import DeviceUnavailable as DeviceUnavailable
    from wattune.errors import InputError as InputError
    from wattune.errors import Interrupted as Interrupted
    from wattune.errors import NoFeasiblePoint as NoFeasiblePoint
    from wattune.errors import OutOfDeviceMemory as OutOfDeviceMemory
    from wattune.errors import OutputError as OutputError
    from wattune.errors import RecordError as RecordError
    from wattune.errors import SafetyStop as SafetyStop
    from wattune.errors import SensorError as SensorError
    from wattune.errors import ServerError as ServerError
    from wattune.errors import ServerRefused as ServerRefused
    from wattune.errors import ServerUnavailable as ServerUnavailable
    from wattune.errors import TargetNotReached as TargetNotReached
    from wattune.errors import UnknownName as UnknownName
    from wattune.errors import WattuneError as WattuneError
    from wattune.errors import WorkloadError as WorkloadError
    from wattune.goal import Goal as Goal
    from wattune.job.config import RunConfig as RunConfig
    from wattune.job.run import run as run
    from wattune.job.steps import compare as compare
    from wattune.job.steps import estimate as estimate
    from wattune.job.steps import plan as plan
    from wattune.job.steps import profile as profile
    from wattune.job.steps import profile_command as profile_command
    from wattune.job.steps import train as train
    from wattune.loop.capped import capped as capped
    from wattune.power.run_update import RunUpdate as RunUpdate
    from wattune.records import Comparison as Comparison
    from wattune.records import Plan as Plan
    from wattune.records import ProfileTable as ProfileTable
    from wattune.records import SampleEfficiency as SampleEfficiency
    from wattune.records import SessionRecord as SessionRecord
    from wattune.records import TrainingRecord as TrainingRecord
    from wattune.reporting import write_report as write_report
    from wattune.tracking.metered_block import meter as meter
    from wattune.workloads import Augmentation as Augmentation
    from wattune.workloads import Data as Data
    from wattune.workloads import Loaders as Loaders
    from wattune.workloads import Metric as Metric
    from wattune.workloads import Model as Model
    from wattune.workloads import OptimizerRule as OptimizerRule
    from wattune.workloads import Workload as Workload
    from wattune.workloads import example_workload as example_workload
    from wattune.workloads import load_workload as load_workload

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
    "wattune.loop.capped": ("capped",),
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

__all__ = sorted(("__version__", *_HOME))


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'wattune' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
