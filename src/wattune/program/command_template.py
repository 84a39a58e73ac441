"""A command line with places for the batch size and the number of steps."""

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

    def words(self, batch_size: int, steps: object) -> list[str]:
        """The words of the command for this batch size and number of steps."""
        return [w.replace(BATCH_SIZE, str(batch_size)).replace(STEPS, str(steps)) for w in shlex.split(self.text)]


def ascending(batch_sizes: Iterable[int]) -> tuple[int, ...]:
    """The batch sizes in order. Raises: InputError if there is none, a duplicate, or one below 1."""
    sizes = tuple(sorted(batch_sizes))
    if not sizes or len(set(sizes)) < len(sizes) or sizes[0] < 1:
        shown = ",".join(map(str, sizes)) or "none"
        raise InputError("batch sizes", value=shown, allowed="numbers from 1 on, each once, such as 8,16,32")
    return sizes
