"""How many samples each batch size needs to the target: proxy training, and what follows from its curves.

sweep      (workload, batch sizes, seeds) -> learning curves, over processes, resumable
curve      learning curves -> samples needed, relative to the largest batch size, with spread
estimate   both, on the workload's proxy
"""

from wattune.efficiency.estimating import estimate
from wattune.efficiency.relation import curve
from wattune.efficiency.runs import CHECKPOINT_EVERY
from wattune.efficiency.sweeping import sweep

__all__ = ["CHECKPOINT_EVERY", "curve", "estimate", "sweep"]
