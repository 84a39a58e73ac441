"""A command line with places for the batch size and for all that depends on the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from wattune.errors import InputError

BATCH_SIZE, STEPS = "{batch_size}", "{steps}"


@dataclass(frozen=True)
class CommandTemplate:
    """``text`` is split as a shell would, and started without one. Raises: InputError."""

    text: str

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.text)
        except ValueError as error:
            raise InputError("the command", value=self.text, hint=str(error)) from error
        if not any(BATCH_SIZE in word for word in words):
            raise InputError("the command", value=self.text, allowed=f"with {BATCH_SIZE} where the batch size belongs")

    @property
    def has_steps(self) -> bool:
        """True if the command takes a number of steps."""
        return STEPS in self.text

    @property
    def name(self) -> str:
        """The program alone: the words before its first option."""
        words: list[str] = []
        for word in shlex.split(self.text):
            if word.startswith("-") or "{" in word:
                break
            words.append(word)
        return " ".join(words) or self.text

    def words(self, **places: object) -> list[str]:
        """The words of the command, with a value in each of these places: ``words(batch_size=8, steps=5)``."""
        words = shlex.split(self.text)
        for name, value in places.items():
            words = [word.replace(f"{{{name}}}", str(value)) for word in words]
        return words


def ascending(batch_sizes: Iterable[int]) -> tuple[int, ...]:
    """The batch sizes in order. Raises: InputError if there is none, a duplicate, or one below 1."""
    sizes = tuple(sorted(batch_sizes))
    if not sizes or len(set(sizes)) < len(sizes) or sizes[0] < 1:
        shown = ",".join(map(str, sizes)) or "none"
        raise InputError("batch sizes", value=shown, allowed="numbers from 1 on, each once, such as 8,16,32")
    return sizes
