"""Small random graphs, classified by the rule that generated them, and a graph network.

In each of several rounds, every node of the network sums the states of its neighbours.
Source: Xu et al. 2019, How Powerful are Graph Neural Networks? (arXiv 1810.00826), equations 4.1 and 4.2, with sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wattune.errors import WorkloadError
from wattune.workloads.data import Data
from wattune.workloads.sample_selection import check_split, split
from wattune.workloads.values import number, whole

Edges = list[tuple[int, int]]


@dataclass(frozen=True)
class Graphs:
    """``samples`` graphs of ``nodes`` nodes and ``edges`` edges: inputs (samples, edges, 2), labels 0, 1 and 2.

    0: all pairs of nodes are equally likely (Erdős and Rényi 1959). 1: a ring in which each node is linked to its
    nearest neighbours, with a share ``rewired`` of the edges moved at random (Watts and Strogatz 1998,
    doi 10.1038/30918). 2: preferential attachment, where each new node prefers nodes with many edges (Barabási and
    Albert 1999, doi 10.1126/science.286.5439.509). All have the same number of edges, and node numbers are arbitrary.
    ``seed`` determines the graphs, ``split_seed`` the split.
    """

    edges: int
    nodes: int = 24
    samples: int = 2400
    rewired: float = 0.2
    seed: int = 0
    test_share: float = 0.2
    split_seed: int = 0

    def __post_init__(self) -> None:
        whole("samples of the graphs", self.samples)
        whole("seed of the graphs", self.seed, least=0)
        if number("rewired", self.rewired, least=0) > 1:
            raise WorkloadError("rewired", value=self.rewired, allowed="0 to 1")
        check_split(self.test_share, self.split_seed)
        most = whole("nodes of the graphs", self.nodes, least=4) * (self.nodes - 1) // 2
        if not self.nodes - 1 <= whole("edges of the graphs", self.edges) <= most:
            raise WorkloadError(
                "edges of the graphs", value=self.edges, allowed=f"{self.nodes - 1} to {most} for {self.nodes} nodes"
            )

    def __call__(self) -> Data:
        """Generate the graphs."""
        draws = np.random.default_rng(self.seed)
        labels = np.arange(self.samples, dtype=np.int64) % 3
        graphs = [self._graph(int(label), draws) for label in labels]
        return split(np.stack(graphs).astype(np.float32), labels, self.test_share, self.split_seed)

    def _graph(self, label: int, draws: np.random.Generator) -> NDArray[np.int64]:
        edges = (self._uniform, self._ring, self._preferential)[label](draws)
        numbers = draws.permutation(self.nodes)
        return numbers[np.array(sorted(edges), dtype=np.int64)]

    def _uniform(self, draws: np.random.Generator) -> set[tuple[int, int]]:
        return self._filled(set(), draws)

    def _ring(self, draws: np.random.Generator) -> set[tuple[int, int]]:
        nodes = range(self.nodes)
        nearest = [_pair(node, (node + distance) % self.nodes) for distance in range(1, self.nodes) for node in nodes]
        ring = list(dict.fromkeys(nearest))[: self.edges]
        return self._filled({edge for edge in ring if draws.random() >= self.rewired}, draws)

    def _preferential(self, draws: np.random.Generator) -> set[tuple[int, int]]:
        each = max(1, self.edges // self.nodes)
        edges: set[tuple[int, int]] = set()
        ends = list(range(each))  # each node once per edge that it has
        for node in range(each, self.nodes):
            neighbours = {ends[draws.integers(len(ends))] for _ in range(each)}
            edges |= {_pair(node, other) for other in neighbours}
            ends += [end for other in neighbours for end in (node, other)]
        while len(edges) < self.edges and len(edges) < self.nodes * (self.nodes - 1) // 2:
            one, other = ends[draws.integers(len(ends))], int(draws.integers(self.nodes))
            if one != other and _pair(one, other) not in edges:
                edges.add(_pair(one, other))
                ends += [one, other]
        return edges

    def _filled(self, edges: set[tuple[int, int]], draws: np.random.Generator) -> set[tuple[int, int]]:
        """Add edges between random nodes until there are ``self.edges``."""
        while len(edges) < self.edges:
            one, other = (int(node) for node in draws.integers(self.nodes, size=2))
            if one != other:
                edges.add(_pair(one, other))
        return edges


def _pair(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)


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
