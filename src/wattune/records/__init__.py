"""Records that the parts exchange: frozen, validated when read, JSON in and out.

Field names end with their unit: W, J, s, MHz, samples, bytes. Unknown fields are kept; an older ``version`` is read, a
newer one is refused. ``save`` replaces a file atomically.
"""

from __future__ import annotations

from wattune.cap import CapSide as CapSide
from wattune.records.base import BoardEvent as BoardEvent
from wattune.records.base import Kind as Kind
from wattune.records.base import Provenance as Provenance
from wattune.records.base import Record as Record
from wattune.records.base import Supply as Supply
from wattune.records.base import Value as Value
from wattune.records.base import load_one_of as load_one_of
from wattune.records.base import provenance as provenance
from wattune.records.efficiency import EfficiencyPoint as EfficiencyPoint
from wattune.records.efficiency import ProxyLevel as ProxyLevel
from wattune.records.efficiency import ProxyObservation as ProxyObservation
from wattune.records.efficiency import SampleEfficiency as SampleEfficiency
from wattune.records.plan import AlgorithmChoice as AlgorithmChoice
from wattune.records.plan import Baseline as Baseline
from wattune.records.plan import Candidate as Candidate
from wattune.records.plan import FrontPoint as FrontPoint
from wattune.records.plan import IntensityValue as IntensityValue
from wattune.records.plan import Plan as Plan
from wattune.records.plan import PlannedCap as PlannedCap
from wattune.records.plan import PlannedEvaluations as PlannedEvaluations
from wattune.records.plan import Schedule as Schedule
from wattune.records.plan import ScheduledTime as ScheduledTime
from wattune.records.profile import AbortedProbe as AbortedProbe
from wattune.records.profile import Confirmation as Confirmation
from wattune.records.profile import Guidance as Guidance
from wattune.records.profile import Pick as Pick
from wattune.records.profile import ProfileCell as ProfileCell
from wattune.records.profile import ProfileCost as ProfileCost
from wattune.records.profile import ProfileKey as ProfileKey
from wattune.records.profile import ProfileTable as ProfileTable
from wattune.records.profile import Program as Program
from wattune.records.profile import ReferencePower as ReferencePower
from wattune.records.profile import ReferenceSet as ReferenceSet
from wattune.records.session import EfficiencySource as EfficiencySource
from wattune.records.session import SessionEnding as SessionEnding
from wattune.records.session import SessionRecipe as SessionRecipe
from wattune.records.session import SessionRecord as SessionRecord
from wattune.records.training import CapInterval as CapInterval
from wattune.records.training import Comparison as Comparison
from wattune.records.training import ComparisonRow as ComparisonRow
from wattune.records.training import Emissions as Emissions
from wattune.records.training import Ending as Ending
from wattune.records.training import Evaluation as Evaluation
from wattune.records.training import ExactFigures as ExactFigures
from wattune.records.training import GuardEvent as GuardEvent
from wattune.records.training import LearningCurve as LearningCurve
from wattune.records.training import PointChange as PointChange
from wattune.records.training import PowerSample as PowerSample
from wattune.records.training import TrainingRecord as TrainingRecord
from wattune.records.work import AtPoint as AtPoint
from wattune.records.work import AtPointIfAny as AtPointIfAny
from wattune.records.work import Operation as Operation
from wattune.records.work import PhaseWork as PhaseWork
from wattune.records.work import PointRecord as PointRecord
from wattune.records.work import StepWork as StepWork
from wattune.records.work import flat as flat
