"""Which training algorithms need equally many samples, since their gradients are the same."""

from __future__ import annotations

NO_MATTER: dict[str, frozenset[str]] = {
    "backprop": frozenset({"checkpoint"}),
    "async-fgd": frozenset({"backend"}),
}
"""Algorithm -> its options that change what a step takes, and not what is learned from it."""


def learns_as(algorithm: str) -> str:
    """The algorithm without the options that do not matter to the samples: those with the same one share a curve."""
    name, _, options = algorithm.partition(":")
    without = NO_MATTER.get(name, frozenset())
    kept = [option for option in options.split(",") if option and option.partition("=")[0] not in without]
    return name + (":" if kept else "") + ",".join(kept)
