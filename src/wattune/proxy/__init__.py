"""Samples to target per batch size, estimated from training runs of the workload's proxy.

sweep      (workload, batch sizes, seeds) -> learning curves, over processes, resumable
curve      learning curves -> samples to target, relative to the largest batch size, with their spread
estimate   both, on the workload's proxy; or only the few runs that a pooled curve needs
read_runs, chosen_runs, curve_from_runs    the same from a table of recorded runs
given_times    the device's seconds per step as the step times of an estimate
"""

from wattune.proxy.estimate import estimate as estimate
from wattune.proxy.estimate import resolve_strategy as resolve_strategy
from wattune.proxy.sweep import sweep as sweep
from wattune.sample_efficiency.choice import given_times as given_times
from wattune.sample_efficiency.recorded_runs import chosen_runs as chosen_runs
from wattune.sample_efficiency.recorded_runs import curve_from_runs as curve_from_runs
from wattune.sample_efficiency.recorded_runs import read_runs as read_runs
from wattune.sample_efficiency.relative_samples import curve as curve
