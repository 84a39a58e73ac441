"""Small random graphs, classified by the rule that generated them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
