"""Training algorithms that need equally many samples, since their gradients are the same."""

from __future__ import annotations

NO_MATTER: dict[str, frozenset[str]] = {
    "backprop": frozenset({"checkpoint"}),
    "async-fgd": frozenset({"backend"}),
}
"""Algorithm -> its options that change the cost of a step, but not its gradient."""


def learns_as(algorithm: str) -> str:
    """The algorithm without the options that do not change the samples: equal results share a curve."""
    name, _, options = algorithm.partition(":")
    without = NO_MATTER.get(name, frozenset())
    remaining = [option for option in options.split(",") if option and option.partition("=")[0] not in without]
    return name + (":" if remaining else "") + ",".join(remaining)
