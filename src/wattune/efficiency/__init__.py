"""How many samples each batch size needs to the target: proxy training, and what follows from its curves.

sweep      (workload, batch sizes, seeds) -> learning curves, over processes, resumable
curve      learning curves -> samples needed, relative to the largest batch size, with spread
estimate   both, on the workload's proxy; or only the runs that a curve through all of them needs
read_runs, chosen_runs, curve_from_runs    the same from a table of runs that are recorded already
given_times    what the device says of the batch sizes, from seconds of a step
"""

from wattune.efficiency.estimating import estimate, strategy_of
from wattune.efficiency.recorded import chosen_runs, curve_from_runs, read_runs
from wattune.efficiency.relation import curve
from wattune.efficiency.runs import CHECKPOINT_EVERY
from wattune.efficiency.steptimes import given_times
from wattune.efficiency.sweeping import sweep

__all__ = [
    "CHECKPOINT_EVERY",
    "chosen_runs",
    "curve",
    "curve_from_runs",
    "estimate",
    "given_times",
    "read_runs",
    "strategy_of",
    "sweep",
]
