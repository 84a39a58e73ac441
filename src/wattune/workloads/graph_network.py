"""A network on graphs: every node adds up what its neighbours hold, a few times over.

Source: Xu et al. 2019, How Powerful are Graph Neural Networks? (arXiv 1810.00826), equations 4.1 and 4.2, with sums.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from wattune.errors import WorkloadError
from wattune.workloads.values import whole


class Round(nn.Module):
    """One round of messages: the sum over the neighbours and the node's own state go through a small network."""

    def __init__(self, width: int):
        super().__init__()
        self.own = nn.Parameter(torch.zeros(1))
        self.network = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )

    def reset_parameters(self) -> None:
        """Begin anew."""
        nn.init.zeros_(self.own)

    def forward(self, states: Tensor, sources: Tensor, targets: Tensor, there: Tensor) -> Tensor:
        """States (all nodes, width); edges (all edges,) from ``sources`` to ``targets``; 1 for each that is ``there``
        and 0 for the others -> states (all nodes, width)."""
        messages = states.index_select(0, sources) * there.unsqueeze(-1)  # (all edges, width)
        heard = torch.zeros_like(states).index_add(0, targets, messages)
        return cast(Tensor, self.network((1 + self.own) * states + heard))


class GraphNetwork(nn.Module):
    """Tells classes of graphs of ``nodes`` nodes apart, by their edges alone: 8,839 parameters as it stands.

    A graph is a list of edges (E, 2), a pair of numbers of nodes for each, which go both ways; a pair with a number
    below 0 stands for no edge, so that graphs with fewer edges can be made as long as others. Numbers beyond the last
    node are taken for the last. Messages are gathered with ``index_select`` and added up with ``index_add``, which
    devices have to read and write at scattered places.
    """

    def __init__(self, *, nodes: int = 24, classes: int = 3, width: int = 32, rounds: int = 4):
        super().__init__()
        for what, value in (("nodes", nodes), ("width", width), ("rounds", rounds)):
            whole(f"{what} of the graph-network", value)
        self.nodes = nodes
        self.start = nn.Embedding(1, width)
        self.rounds = nn.ModuleList(Round(width) for _ in range(rounds))
        self.fc = nn.Linear(width, classes)

    def extra_repr(self) -> str:
        """What the parameters do not tell."""
        return f"nodes={self.nodes}"

    def forward(self, x: Tensor) -> Tensor:
        """Edges (B, E, 2), as floats or whole numbers -> (B, classes)."""
        if x.dim() != 3 or x.shape[-1] != 2:
            raise WorkloadError("the shape of the graphs", value=tuple(x.shape), allowed="(B, edges, 2)")
        batch = len(x)
        first = torch.arange(batch, device=x.device).view(-1, 1, 1) * self.nodes  # number of each graph's first node
        ends = (x.round().long().clamp(0, self.nodes - 1) + first).view(-1, 2)
        there = (x.view(-1, 2) > -0.5).all(-1)
        sources, targets = torch.cat([ends, ends.flip(-1)]).unbind(-1)  # both ways
        both = there.to(self.fc.weight.dtype).repeat(2)
        states = self.start.weight.expand(batch * self.nodes, -1)
        for one in self.rounds:
            states = one(states, sources, targets, both)
        return cast(Tensor, self.fc(states.view(batch, self.nodes, -1).mean(1)))
