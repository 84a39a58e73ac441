"""Records that the parts exchange: frozen, validated when read, JSON in and out.

Field names end with their unit: W, J, s, MHz, samples, bytes. Unknown fields are kept; an older ``version`` is read, a
newer one is refused. ``save`` replaces a file atomically.
"""

from __future__ import annotations

from wattune.cap import CapSide
from wattune.records.base import BoardEvent, Kind, Provenance, Record, Supply, Value, provenance
from wattune.records.efficiency import EfficiencyPoint, ProxyObservation, SampleEfficiency
from wattune.records.plan import (
    AlgorithmChoice,
    Baseline,
    Candidate,
    FrontPoint,
    IntensityValue,
    Plan,
    PlannedCap,
    PlannedEvaluations,
    Schedule,
    ScheduledTime,
)
from wattune.records.profile import (
    AbortedProbe,
    Confirmation,
    Guidance,
    Pick,
    ProfileCell,
    ProfileCost,
    ProfileKey,
    ProfileTable,
    Program,
    ReferencePower,
    ReferenceSet,
)
from wattune.records.session import EfficiencySource, SessionEnding, SessionRecipe, SessionRecord
from wattune.records.training import (
    CapInterval,
    Comparison,
    ComparisonRow,
    Emissions,
    Ending,
    Evaluation,
    ExactFigures,
    GuardEvent,
    LearningCurve,
    PointChange,
    PowerSample,
    TrainingRecord,
)
from wattune.records.work import AtPoint, AtPointIfAny, Operation, PhaseWork, PointRecord, StepWork, flat

__all__ = [
    "AbortedProbe",
    "AlgorithmChoice",
    "AtPoint",
    "AtPointIfAny",
    "Baseline",
    "BoardEvent",
    "Candidate",
    "CapInterval",
    "CapSide",
    "Comparison",
    "ComparisonRow",
    "Confirmation",
    "EfficiencyPoint",
    "EfficiencySource",
    "Emissions",
    "Ending",
    "Evaluation",
    "ExactFigures",
    "FrontPoint",
    "GuardEvent",
    "Guidance",
    "IntensityValue",
    "Kind",
    "LearningCurve",
    "Operation",
    "PhaseWork",
    "Pick",
    "Plan",
    "PlannedCap",
    "PlannedEvaluations",
    "PointChange",
    "PointRecord",
    "PowerSample",
    "ProfileCell",
    "ProfileCost",
    "ProfileKey",
    "ProfileTable",
    "Program",
    "Provenance",
    "ProxyObservation",
    "Record",
    "ReferencePower",
    "ReferenceSet",
    "SampleEfficiency",
    "Schedule",
    "ScheduledTime",
    "SessionEnding",
    "SessionRecipe",
    "SessionRecord",
    "StepWork",
    "Supply",
    "TrainingRecord",
    "Value",
    "flat",
    "provenance",
]
