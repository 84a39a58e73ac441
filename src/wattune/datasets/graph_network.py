"""A graph network: in each of several rounds, every node sums the states of its neighbours.

Source: Xu et al. 2019, How Powerful are Graph Neural Networks? (arXiv 1810.00826), equations 4.1 and 4.2, with sums.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from wattune.errors import WorkloadError
from wattune.workloads.values import whole


class Round(nn.Module):
    """One round of message passing: a small network of the sum over the neighbours and the node's own state."""

    def __init__(self, width: int):
        super().__init__()
        self.own = nn.Parameter(torch.zeros(1))
        self.network = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )

    def reset_parameters(self) -> None:
        """Reset the weight of the node's own state to its initial value, 0."""
        nn.init.zeros_(self.own)

    def forward(self, states: Tensor, sources: Tensor, targets: Tensor, exists: Tensor) -> Tensor:
        """States (all nodes, width) -> states (all nodes, width).

        ``sources``, ``targets``: nodes of the edges, (all edges,). ``exists``: 1 for an edge and 0 for padding.
        """
        messages = states.index_select(0, sources) * exists.unsqueeze(-1)  # (all edges, width)
        sums = torch.zeros_like(states).index_add(0, targets, messages)
        return cast(Tensor, self.network((1 + self.own) * states + sums))


class GraphNetwork(nn.Module):
    """A classifier of graphs with ``nodes`` nodes by their edges alone: 8,839 parameters by default.

    A graph is a list of undirected edges (E, 2), each a pair of node numbers. A pair with a negative number is padding,
    which gives graphs with fewer edges the length of the others. Numbers beyond the last node count as the last.
    ``index_select`` gathers the messages and ``index_add`` sums them: scattered reads and writes for the device.
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
        """The number of nodes, which no parameter shows."""
        return f"nodes={self.nodes}"

    def forward(self, x: Tensor) -> Tensor:
        """Edges (B, E, 2), floats or integers -> (B, classes)."""
        if x.dim() != 3 or x.shape[-1] != 2:
            raise WorkloadError("the shape of the graphs", value=tuple(x.shape), allowed="(B, edges, 2)")
        batch = len(x)
        first = torch.arange(batch, device=x.device).view(-1, 1, 1) * self.nodes  # each graph's first node
        ends = (x.round().long().clamp(0, self.nodes - 1) + first).view(-1, 2)
        exists = (x.view(-1, 2) > -0.5).all(-1)
        sources, targets = torch.cat([ends, ends.flip(-1)]).unbind(-1)  # both directions
        both = exists.to(self.fc.weight.dtype).repeat(2)
        states = self.start.weight.expand(batch * self.nodes, -1)
        for one in self.rounds:
            states = one(states, sources, targets, both)
        return cast(Tensor, self.fc(states.view(batch, self.nodes, -1).mean(1)))
