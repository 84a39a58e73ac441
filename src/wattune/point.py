"""The operating point: the shape of a batch, and what the device's knobs are set to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

KNOBS: Final[dict[str, tuple[str, str]]] = {
    "clock_mhz": ("", "MHz"),
    "memory_clock_mhz": ("memory", "MHz"),
    "cpu_clock_mhz": ("CPU", "MHz"),
    "cpu_cores": ("", "CPU cores"),
    "power_limit_w": ("power limit", "W"),
}
"""Name of each knob as records have it -> the word before its value, and the unit behind it.

``clock_mhz`` is the clock of the processor that trains: the GPU's on a board that has one, else the CPU's.
"""

_NAMES: Final = tuple(KNOBS)
_ORDER: Final = {name: index for index, name in enumerate(KNOBS)}


class BatchShape(NamedTuple):
    """Samples of one optimizer step, and of one forward pass."""

    batch: int
    micro: int

    @classmethod
    def of(cls, batch_size: int, micro_batch_size: int | None = None) -> BatchShape:
        """The shape of these sizes; ``micro_batch_size`` None is the whole batch."""
        return cls(batch_size, batch_size if micro_batch_size is None else micro_batch_size)

    def __str__(self) -> str:
        """Text for people: "batch size 32 (micro-batches of 8)"."""
        return f"batch size {self.batch}" + ("" if self.micro == self.batch else f" (micro-batches of {self.micro})")


class Knobs(Mapping[str, float]):
    """Settings of a device's knobs: an immutable mapping from a knob's name to its value, in a fixed order.

    A knob that is absent is not set by us. Knobs compare by their names and values in order, so that those of one
    device sort by the first knob, then the next. Raises: KeyError for a name that is not in ``KNOBS``.
    """

    __slots__ = ("_hash", "_items", "order")

    order: tuple[tuple[int, float], ...]
    """Sort key: positions of the names in ``KNOBS``, with their values."""

    def __init__(self, values: Mapping[str, float] | None = None, /, **others: float):
        merged = {**(values or {}), **others}
        self.order = tuple(sorted((_ORDER[name], value) for name, value in merged.items()))
        self._items = tuple((_NAMES[index], value) for index, value in self.order)
        self._hash = hash(self._items)

    def __getitem__(self, name: str) -> float:
        for key, value in self._items:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Knobs):
            return self._items == other._items
        return isinstance(other, Mapping) and dict(self._items) == dict(other)

    def __lt__(self, other: Knobs) -> bool:
        return self.order < other.order

    @property
    def first(self) -> float | None:
        """The value of the first knob; None if nothing is set."""
        return self._items[0][1] if self._items else None

    def replace(self, **values: float) -> Knobs:
        """The same with other values of these knobs."""
        return Knobs(dict(self._items), **values)

    def __repr__(self) -> str:
        return f"Knobs({', '.join(f'{name}={value:g}' for name, value in self._items)})"

    def __str__(self) -> str:
        """Text for people: "612 MHz", "612 MHz, memory 1600 MHz", "120 W"; empty if nothing is set."""
        return ", ".join(knob_text(name, value) for name, value in self._items)


def knob_text(name: str, value: float, before: str = "") -> str:
    """One knob's value as a person reads it, such as "612 MHz" or "memory 1600 MHz"; ``before`` it, other numbers."""
    word, unit = KNOBS[name]
    return " ".join(part for part in (word, f"{before}{value:g}", unit) if part)


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Settings of training and device: the shape of a batch, and the knobs.

    ``fields`` and ``of`` convert to and from the flat form that records have in JSON.
    """

    shape: BatchShape
    knobs: Knobs = field(default_factory=Knobs)

    @classmethod
    def of(cls, batch_size: int, micro_batch_size: int | None = None, /, **knobs: float | None) -> OperatingPoint:
        """The point of these fields; ``micro_batch_size`` None is the whole batch, a knob that is None is not set."""
        shape = BatchShape.of(batch_size, micro_batch_size)
        return cls(shape, Knobs({k: v for k, v in knobs.items() if v is not None}))

    def fields(self) -> dict[str, Any]:
        """Flat fields: ``batch_size``, ``micro_batch_size`` if it is not the batch size, and the knobs that are set."""
        micro = {} if self.shape.micro == self.shape.batch else {"micro_batch_size": self.shape.micro}
        return {"batch_size": self.shape.batch, **micro, **self.knobs}

    @property
    def batch_size(self) -> int:
        """Samples of one optimizer step."""
        return self.shape.batch

    @property
    def micro_batch_size(self) -> int:
        """Samples of one forward pass."""
        return self.shape.micro

    @property
    def order(self) -> tuple[BatchShape, tuple[tuple[int, float], ...]]:
        """Sort key: the shape, then the knobs."""
        return self.shape, self.knobs.order

    def __lt__(self, other: OperatingPoint) -> bool:
        return self.order < other.order

    def __str__(self) -> str:
        """Text for people: "batch size 32 (micro-batches of 8) at 612 MHz"."""
        return f"{self.shape}" + (f" at {self.knobs}" if self.knobs else "")
