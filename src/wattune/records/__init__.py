"""The records that travel between the parts: frozen, validated on the way in, JSON in and out.

Units stand in the field names: W, J, s, MHz, samples, bytes. Fields that this version does not know are kept;
an older ``version`` is read, a newer one is refused. ``save`` replaces a file in one step, so a record is either
the old one or the new one, never a half.
"""

from __future__ import annotations

from wattune.records.base import Kind, Provenance, Record, Value, provenance
from wattune.records.board import BoardEvent, CapSide, Supply
from wattune.records.comparison import Comparison, ComparisonRow
from wattune.records.efficiency import EfficiencyCurve, EfficiencyPoint, FirstTenth
from wattune.records.plan import AlgorithmChoice, Baseline, Candidate, CapGain, Plan, Robustness
from wattune.records.profile import (
    AbortedProbe,
    Confirmation,
    Guidance,
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
    Ending,
    Evaluation,
    ExactFigures,
    FirstTenthSeen,
    GuardEvent,
    LearningCurve,
    PointChange,
    PowerSample,
    TrainingRecord,
)
from wattune.records.work import AtPoint, OperatingPoint, Operation, PhaseWork, StepWork

__all__ = [
    "AbortedProbe",
    "AlgorithmChoice",
    "AtPoint",
    "Baseline",
    "BoardEvent",
    "Candidate",
    "CapGain",
    "CapSide",
    "Comparison",
    "ComparisonRow",
    "Confirmation",
    "EfficiencyCurve",
    "EfficiencyPoint",
    "EfficiencySource",
    "Ending",
    "Evaluation",
    "ExactFigures",
    "FirstTenth",
    "FirstTenthSeen",
    "GuardEvent",
    "Guidance",
    "Kind",
    "LearningCurve",
    "OperatingPoint",
    "Operation",
    "PhaseWork",
    "Plan",
    "PointChange",
    "PowerSample",
    "ProfileCell",
    "ProfileCost",
    "ProfileKey",
    "ProfileTable",
    "Program",
    "Provenance",
    "Record",
    "ReferencePower",
    "ReferenceSet",
    "Robustness",
    "SessionEnding",
    "SessionRecipe",
    "SessionRecord",
    "StepWork",
    "Supply",
    "TrainingRecord",
    "Value",
    "provenance",
]
