"""Tables 2 to 4 of Ahmed et al., "Accelerated Training on Low-Power Edge Devices", arXiv 2502.18323, as records.

Each cell is the mean time to the target accuracy over 5 seeds (text: 3) and its standard deviation, in seconds.

How the cells were read. In the readable copies of the tables, the digits of a mean and of its deviation are not
separated. One rule separates them: a seed needs the same number of samples at every clock, so for one model, data set
and batch size the ratio of deviation to mean does not change with the power limit. Exactly one separation fits each
cell, except for four, which have a ``doubt`` and are left out of ``SOUND``.

Inferred, not printed, so that a cell can be predicted:

* Batch sizes. The same rule shows which cells share one; the paper states that Baseline 1 takes the largest that fits.
  The other numbers (8, 16, 32, 64) are the likeliest reading: ResNet18 with (4, 8, 16) fits nearly as well.
* Clocks. No limit is assumed to mean the board's highest clock. With another reading (Nano 307.2, 460.8, 614.4, 768 and
  921.6 MHz; TX2 NX 930.75 in place of 854.25 MHz) a fit to the Nano's ResNet18 misses the two other models by up to
  47%, and a fit to all times misses the Nano by up to 8% (measured at efdbcea). The paper's limits in watts are in
  none of the copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["Baseline 1", "Baseline 2", "Ours", "Fastest"]
"""Largest batch at a conservative clock; fewest samples there; the paper's method; the best by exhaustive search."""
Limit = Literal["P1", "P2", "none"]
Rung = Literal["baseline P1", "chosen P1", "baseline P2", "chosen P2", "highest"]
"""The five clocks of a board in the tables: the baselines' under either limit, the methods' own, the highest."""

NANO, TX2_NX = "jetson-nano", "jetson-tx2-nx"
RESNET18, MOBILENET_V2, TRANSFORMER = "resnet18", "mobilenet-v2", "character-transformer"
EFFICIENTVIT = "efficientvit-b1"
"""Added in the journal version (TMLR 2025), whose figures for it are in none of the copies; its size is unknown."""

RUNGS: tuple[Rung, ...] = ("baseline P1", "chosen P1", "baseline P2", "chosen P2", "highest")
CLOCKS: dict[str, dict[Rung, float]] = {
    NANO: dict(zip(RUNGS, (384.0, 537.6, 691.2, 844.8, 921.6), strict=True)),
    TX2_NX: dict(zip(RUNGS, (420.75, 522.75, 854.25, 1122.0, 1300.5), strict=True)),
}
"""MHz of each rung by board."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table: ``mean_s`` and ``std_s`` are printed, ``batch_size`` and ``rung`` are inferred.

    ``doubt``: the error in the printed cell; empty for a sound one.
    """

    table: int
    device: str
    model: str
    dataset: str
    method: Method
    limit: Limit
    mean_s: float
    std_s: float
    batch_size: int
    rung: Rung
    doubt: str = ""

    @property
    def clock_mhz(self) -> float:
        """The inferred clock."""
        return CLOCKS[self.device][self.rung]

    @property
    def name(self) -> str:
        """Name of the cell: board, model, data set, method and limit."""
        limit = "no limit" if self.limit == "none" else self.limit
        return f"{self.device} {self.model} {self.dataset} {self.method} {limit}"


LIMITS: tuple[Limit, ...] = ("P1", "P2", "none")
BASELINE: tuple[Rung, ...] = ("baseline P1", "baseline P2", "highest")
CHOSEN: tuple[Rung, ...] = ("chosen P1", "chosen P2", "highest")

DOUBTS: dict[tuple[str, str, str, Method, Limit], str] = {
    (NANO, MOBILENET_V2, "SVHN", "Ours", "P1"): (
        "(a) the deviation breaks the rule, by which it is about 670 s; the mean agrees with those of CINIC"
    ),
    (NANO, MOBILENET_V2, "SVHN", "Fastest", "P1"): "(a) printed once for Ours and Fastest, see there",
    (NANO, TRANSFORMER, "Dickens", "Baseline 2", "P2"): (
        "(b) mean and deviation break the rule, by which they are about 9212 and 147 s"
    ),
    (TX2_NX, RESNET18, "SVHN", "Baseline 2", "P1"): (
        "(c) the deviation is Baseline 1's, by the rule it is about 1045 s; the mean may be right"
    ),
    (TX2_NX, RESNET18, "CINIC", "Baseline 2", "P2"): (
        "(d) the deviation is that of the Nano, by the rule it is about 607 s; the mean may be right"
    ),
}


def _row(
    table: int,
    device: str,
    model: str,
    dataset: str,
    method: Method,
    printed: tuple[tuple[float, float], ...],
    batch_sizes: tuple[int, int, int],
    rungs: tuple[Rung, ...],
) -> tuple[Cell, ...]:
    cells = zip(LIMITS, printed, batch_sizes, rungs, strict=True)
    return tuple(
        Cell(
            table, device, model, dataset, method, limit, mean_s, std_s, batch_size, rung,
            DOUBTS.get((device, model, dataset, method, limit), ""),
        )
        for limit, (mean_s, std_s), batch_size, rung in cells
    )  # fmt: skip


_NANO_RESNET_SVHN = ((8477, 1207), (4607, 725), (4170, 656))
_NANO_MOBILENET_SVHN = ((5940, 916), (3912, 441), (3912, 441))
_NANO_MOBILENET_CINIC = ((6194, 509), (4080, 335), (4080, 335))
_NANO_AUSTEN = ((7232, 101), (3982, 256), (3556, 229))
_NANO_DICKENS = ((10956, 175), (6043, 215), (5397, 192))
_DICKENS_128 = ((12347, 439), (6991, 249), (5397, 192))
_TX2_SVHN = ((4283, 708), (2648, 417), (2431, 382))
_TX2_CINIC = ((5046, 893), (2510, 625), (2294, 571))
# MobileNetV2 draws so little that the methods take the highest clock under P2 already.
_MOBILENET_CHOSEN: tuple[Rung, ...] = ("chosen P1", "highest", "highest")
_FASTEST_CINIC: tuple[Rung, ...] = ("baseline P1", "chosen P2", "highest")

# fmt: off
CELLS: tuple[Cell, ...] = (
    *_row(2, NANO, RESNET18, "SVHN", "Baseline 1", ((14347, 3796), (8204, 2170), (6187, 1637)), (128,) * 3, BASELINE),
    *_row(2, NANO, RESNET18, "SVHN", "Baseline 2", ((11345, 1616), (7055, 1005), (5817, 828)), (8,) * 3, BASELINE),
    *_row(2, NANO, RESNET18, "SVHN", "Ours", _NANO_RESNET_SVHN, (8, 32, 32), CHOSEN),
    *_row(2, NANO, RESNET18, "SVHN", "Fastest", _NANO_RESNET_SVHN, (8, 32, 32), CHOSEN),
    *_row(2, NANO, RESNET18, "CINIC", "Baseline 1", ((18154, 4109), (10381, 2349), (7829, 1772)), (128,) * 3, BASELINE),
    *_row(2, NANO, RESNET18, "CINIC", "Baseline 2", ((12436, 1443), (7733, 897), (6377, 740)), (8,) * 3, BASELINE),
    *_row(2, NANO, RESNET18, "CINIC", "Ours", ((9292, 1078), (4454, 788), (4032, 713)), (8, 32, 32), CHOSEN),
    *_row(2, NANO, RESNET18, "CINIC", "Fastest", ((9030, 1598), (4454, 788), (4032, 713)), (32,) * 3, _FASTEST_CINIC),
    *_row(2, NANO, MOBILENET_V2, "SVHN", "Baseline 1", ((8708, 2396), (5107, 1405), (3990, 1098)), (64,) * 3, BASELINE),
    *_row(2, NANO, MOBILENET_V2, "SVHN", "Baseline 2", ((8082, 912), (4871, 550), (3912, 441)), (32,) * 3, BASELINE),
    *_row(2, NANO, MOBILENET_V2, "SVHN", "Ours", _NANO_MOBILENET_SVHN, (32,) * 3, _MOBILENET_CHOSEN),
    *_row(2, NANO, MOBILENET_V2, "SVHN", "Fastest", _NANO_MOBILENET_SVHN, (32,) * 3, _MOBILENET_CHOSEN),
    *_row(2, NANO, MOBILENET_V2, "CINIC", "Baseline 1", ((8909, 1121), (5226, 657), (4082, 513)), (64,) * 3, BASELINE),
    *_row(2, NANO, MOBILENET_V2, "CINIC", "Baseline 2", ((8428, 692), (5079, 417), (4080, 335)), (32,) * 3, BASELINE),
    *_row(2, NANO, MOBILENET_V2, "CINIC", "Ours", _NANO_MOBILENET_CINIC, (32,) * 3, _MOBILENET_CHOSEN),
    *_row(2, NANO, MOBILENET_V2, "CINIC", "Fastest", _NANO_MOBILENET_CINIC, (32,) * 3, _MOBILENET_CHOSEN),
    *_row(3, NANO, TRANSFORMER, "Austen", "Baseline 1", ((8136, 524), (4607, 296), (3556, 229)), (128,) * 3, BASELINE),
    *_row(3, NANO, TRANSFORMER, "Austen", "Baseline 2", ((9425, 131), (6081, 85), (5193, 72)), (8,) * 3, BASELINE),
    *_row(3, NANO, TRANSFORMER, "Austen", "Ours", _NANO_AUSTEN, (8, 128, 128), CHOSEN),
    *_row(3, NANO, TRANSFORMER, "Austen", "Fastest", _NANO_AUSTEN, (8, 128, 128), CHOSEN),
    *_row(3, NANO, TRANSFORMER, "Dickens", "Baseline 1", _DICKENS_128, (128,) * 3, BASELINE),
    *_row(3, NANO, TRANSFORMER, "Dickens", "Baseline 2", ((14278, 228), (12941, 532), (7867, 125)), (8,) * 3, BASELINE),
    *_row(3, NANO, TRANSFORMER, "Dickens", "Ours", _NANO_DICKENS, (8, 128, 128), CHOSEN),
    *_row(3, NANO, TRANSFORMER, "Dickens", "Fastest", _NANO_DICKENS, (8, 128, 128), CHOSEN),
    *_row(4, TX2_NX, RESNET18, "SVHN", "Baseline 1", ((7343, 1943), (3944, 1043), (3021, 799)), (128,) * 3, BASELINE),
    *_row(4, TX2_NX, RESNET18, "SVHN", "Baseline 2", ((7337, 1943), (4771, 679), (4086, 582)), (8,) * 3, BASELINE),
    *_row(4, TX2_NX, RESNET18, "SVHN", "Ours", _TX2_SVHN, (16, 32, 32), CHOSEN),
    *_row(4, TX2_NX, RESNET18, "SVHN", "Fastest", _TX2_SVHN, (16, 32, 32), CHOSEN),
    *_row(4, TX2_NX, RESNET18, "CINIC", "Baseline 1", ((9292, 2103), (4991, 1129), (3823, 865)), (128,) * 3, BASELINE),
    *_row(4, TX2_NX, RESNET18, "CINIC", "Baseline 2", ((8042, 933), (5230, 897), (4479, 520)), (8,) * 3, BASELINE),
    *_row(4, TX2_NX, RESNET18, "CINIC", "Ours", ((5463, 889), (2560, 453), (2350, 416)), (16, 32, 32), CHOSEN),
    *_row(4, TX2_NX, RESNET18, "CINIC", "Fastest", _TX2_CINIC, (32, 64, 64), _FASTEST_CINIC),
)
# fmt: on
"""Every cell of Tables 2 to 4, doubtful ones included."""

SOUND: tuple[Cell, ...] = tuple(cell for cell in CELLS if not cell.doubt)
"""Cells without doubt, which are used."""
