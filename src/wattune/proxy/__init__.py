"""Samples to target per batch size, estimated from training runs of the workload's proxy.

sweep      (workload, batch sizes, seeds) -> learning curves, over processes, resumable
curve      learning curves -> samples to target, relative to the largest batch size, with their spread
estimate   both, on the workload's proxy; or only the few runs that a pooled curve needs
"""

from wattune.proxy.estimate import estimate as estimate
from wattune.proxy.estimate import resolve_strategy as resolve_strategy
from wattune.proxy.sweep import sweep as sweep
from wattune.sample_efficiency.relative_samples import curve as curve
