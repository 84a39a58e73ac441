"""A recurrent network for series: gated recurrent units, and a linear head on their last state.

Source: Cho et al. 2014, Learning Phrase Representations using RNN Encoder-Decoder (arXiv 1406.1078), section 2.3, in
the form of torch.nn.GRU, whose reset gate acts after the product with the hidden state.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from wattune.errors import WorkloadError
from wattune.workloads.values import number, whole


class GruLayer(nn.Module):
    """One layer of gated recurrent units, with dropout on its output."""

    fingerprint_name = "Layer"  # the class's former name, which is in fingerprints of stored profiles and checkpoints

    def __init__(self, inputs: int, width: int, dropout: float = 0.0):
        super().__init__()
        self.gru = nn.GRU(inputs, width, batch_first=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, inputs), or (B, L) for one input -> (B, L, width), the hidden state at each step."""
        x = x.unsqueeze(-1) if x.dim() == 2 else x
        return cast(Tensor, self.dropout(self.gru(x)[0]))


class Last(nn.Module):
    """The state after the last step."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, width)."""
        return x[:, -1]


class Gru(nn.Module):
    """Gated recurrent units that forecast a series: 12,929 parameters with one layer of 64.

    ``inputs``: values at each step. ``outputs``: values to forecast, or classes. ``dropout``: between the layers.
    """

    def __init__(self, *, inputs: int = 1, outputs: int = 1, width: int = 64, layers: int = 1, dropout: float = 0.0):
        super().__init__()
        for what, value in (("inputs", inputs), ("outputs", outputs), ("width", width), ("layers", layers)):
            whole(f"{what} of the model gru", value)
        if number("dropout of the model gru", dropout, least=0, below=1) and layers == 1:
            raise WorkloadError("dropout of a gru with one layer", value=dropout, allowed="0, or more layers")
        sizes = [inputs] + [width] * (layers - 1)
        stack = [GruLayer(size, width, dropout if at < layers else 0.0) for at, size in enumerate(sizes, start=1)]
        self.layers = nn.Sequential(*stack)
        self.last = Last()
        self.fc = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, inputs), or (B, L) for one input -> (B, outputs)."""
        return cast(Tensor, self.fc(self.last(self.layers(x))))

    def parts(self) -> list[nn.Module]:
        """Layers, last step and head: the modules that a pipeline is cut from."""
        return [*self.layers, self.last, self.fc]
