"""A program that trains, in place of a workload: its command, and how its output tells what it has learned."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import ClassVar

from wattune.errors import InputError
from wattune.program.command_template import CommandTemplate, ascending

RATE = re.compile(r"(?P<rate>\d+\.?\d*(?:e-?\d+)?)@(?P<batch_size>[1-9]\d{0,8})(?P<linear>,linear)?")

NO_DATA = "the program's own"
"""Fingerprint of data that the command does not name."""


@dataclass(frozen=True)
class ProgramWorkload:
    """A program that trains to ``target``. The estimate and the plan take it for a workload.

    ``command``: with ``{batch_size}``, and optionally ``{rate}``, ``{seed}`` and ``{data}``; it is run without a shell.
    ``metric``: a regular expression with one group, which finds the metric in a line of the output; ``samples``: the
    same for the training samples so far, where no optimizer step of torch is seen. ``rate``: the learning rate at the
    user's own batch size, such as "0.001@32", in proportion to the square root of the batch size; for SGD
    "0.1@32,linear". ``data``, ``proxy_data``: values of ``{data}`` in training and in the estimate.

    Raises: InputError for a command or a pattern that cannot be used.
    """

    command: str
    batch_sizes: tuple[int, ...]
    target: float
    metric: str
    samples: str | None = None
    lower_is_better: bool = False
    rate: str | None = None
    data: str | None = None
    proxy_data: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_sizes", ascending(self.batch_sizes))  # the class is frozen
        template = self.template
        if template.has_steps:
            raise InputError("the command", value=self.command, allowed="without {steps}: a run ends at the target")
        for place, value in (("rate", self.rate), ("data", self.data)):
            if (f"{{{place}}}" in self.command) != (value is not None):
                raise InputError(f"{place} and {{{place}}} in the command", value=value, allowed="both or neither")
        if self.proxy_data is not None and self.data is None:
            raise InputError("proxy_data", value=self.proxy_data, allowed="with data")
        one_group(self.metric, "the pattern of the metric", "val acc: ([0-9.]+)")
        if self.samples is not None:
            one_group(self.samples, "the pattern of the samples", "samples: ([0-9]+)")
        if self.rate is not None and not RATE.fullmatch(self.rate):
            allowed = "learning rate@batch size, such as 0.001@32; for SGD 0.1@32,linear"
            raise InputError("rate", value=self.rate, allowed=allowed)

    @cached_property
    def template(self) -> CommandTemplate:
        """The command."""
        return CommandTemplate(self.command)

    @property
    def name(self) -> str:
        """Name in the records: the program without its options."""
        return self.template.name

    @property
    def batch_size(self) -> int | None:
        """The user's own batch size, for which the learning rate is given; None if it is not one of ``batch_sizes``."""
        own = RATE.fullmatch(self.rate or "")
        return int(own["batch_size"]) if own and int(own["batch_size"]) in self.batch_sizes else None

    @property
    def proxy(self) -> ProgramWorkload:
        """The same program on the data of the estimate."""
        return replace(self, data=self.proxy_data or self.data)

    parameter_ratio: ClassVar = 1.0
    """Every run is of the one program, and so of one model."""

    @property
    def is_proxy_whole(self) -> bool:
        """True if a run of the estimate is a whole training run."""
        return self.proxy_data in (None, self.data)

    @property
    def budget_samples(self) -> int:
        """Samples of the longest run: a program ends where it likes."""
        return sys.maxsize

    def check(self) -> None:
        """Check that there is such a program. Raises: InputError."""
        if shutil.which(program := self.words(self.batch_sizes[0])[0]) is None:
            raise InputError("there is no program", value=program)

    def check_proxy(self) -> list[str]:
        """Warnings about how the proxy differs from this workload: nothing is known but its data."""
        return []

    def words(self, batch_size: int, *, seed: int = 0) -> list[str]:
        """The words of the command."""
        rate = None
        if given := RATE.fullmatch(self.rate or ""):
            # Linear: Goyal et al. 2017, section 2.1; square root: Krizhevsky 2014.
            share = batch_size / int(given["batch_size"])
            rate = f"{float(given['rate']) * (share if given['linear'] else math.sqrt(share)):.6g}"
        return self.template.words(batch_size=batch_size, seed=seed, rate=rate, data=self.data)

    def reached(self, metric: float) -> bool:
        """Return whether this metric is at least as good as the target; False for NaN."""
        return metric <= self.target if self.lower_is_better else metric >= self.target

    def is_better(self, metric: float, other: float) -> bool:
        """Return whether a metric is better than another one."""
        return metric < other if self.lower_is_better else metric > other

    def model_fingerprint(self) -> str:
        """The command, which stands for the model. The program itself may change: then everything is made again."""
        return self.command

    def data_fingerprint(self) -> str:
        """The data by name."""
        return self.data or NO_DATA

    def fingerprint(self) -> str:
        """Fingerprint of everything that is known of a learning curve's origin."""
        identity = {**asdict(self), "batch_sizes": None, "proxy_data": None}
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def one_group(pattern: str, what: str, example: str) -> re.Pattern[str]:
    """The compiled pattern. Raises: InputError if it is not a regular expression with one group."""
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise InputError(what, value=pattern, hint=str(error)) from error
    if found.groups != 1:
        raise InputError(what, value=pattern, allowed=f"one group, such as {example}")
    return found
