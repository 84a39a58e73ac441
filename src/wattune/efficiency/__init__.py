"""How many samples each batch size needs to the target: proxy training, and what follows from its curves.

sweep      (workload, batch sizes, seeds) -> learning curves, over processes, resumable
curve      learning curves -> samples needed, relative to the largest batch size, with spread
estimate   both, on the workload's proxy; or only the runs that a curve through all of them needs
read_runs, chosen_runs, curve_from_runs    the same from a table of runs that are recorded already
next_runs, pooled_result, full_result, Run    the parts of an estimate, for who trains the runs by other means
given_times    what the device says of the batch sizes, from seconds of a step
"""

from wattune.efficiency.estimating import estimate, full_result, strategy_of
from wattune.efficiency.recorded import chosen_runs, curve_from_runs, read_runs
from wattune.efficiency.relation import curve
from wattune.efficiency.runs import CHECKPOINT_EVERY, Run
from wattune.efficiency.sequential import next_runs, pooled_result
from wattune.efficiency.steptimes import given_times
from wattune.efficiency.sweeping import sweep

__all__ = [
    "CHECKPOINT_EVERY",
    "Run",
    "chosen_runs",
    "curve",
    "curve_from_runs",
    "estimate",
    "full_result",
    "given_times",
    "next_runs",
    "pooled_result",
    "read_runs",
    "strategy_of",
    "sweep",
]
