"""The interpreter of a program, and whether the guard can see the steps that the program makes in it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from wattune.errors import InputError
from wattune.program.rounds import StepPage

TIMEOUT_S: Final = 180.0
"""Timeout for importing torch: on a small board with a slow card the first import takes minutes."""

WITH_VALUE: Final = ("-X", "-W", "--check-hash-based-pycs")
"""Options of Python that the next word belongs to."""

# Python 3.6, as boards have it.
_QUERY = """
import json, sys
said = {"python": "%d.%d.%d" % sys.version_info[:3]}
try:
    import torch
    said["torch"], said["cuda"] = str(torch.__version__), torch.version.cuda
    said["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    try:
        import numpy
        said["numpy"] = numpy.__version__
        torch.from_numpy(numpy.zeros(1))
    except ImportError:
        pass
    except Exception as error:
        said["misfit"] = str(error)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
except Exception as error:
    said["failure"] = "%s: %s" % (type(error).__name__, error)
print()
print(json.dumps(said))
"""


class Interpreter(NamedTuple):
    """A program's interpreter, with the versions of what it has; None for a missing one.

    ``cuda``: the CUDA that torch was built for, ``gpu``: the GPU that it can use. ``misfit``: why numpy and torch do
    not work together; ``failure``: why torch cannot be loaded. ``sees_steps``: the guard sees its optimizers' steps.
    """

    path: str
    python: str
    torch: str | None = None
    cuda: str | None = None
    gpu: str | None = None
    numpy: str | None = None
    misfit: str = ""
    failure: str = ""
    sees_steps: bool = False


def examine(command: Sequence[str]) -> Interpreter | None:
    """Examine the interpreter that a command starts; None for another program than Python.

    Raises: InputError if there is no such program.
    """
    start = interpreter_of(command)
    return None if start is None else _examined(start)


def own_interpreter() -> Interpreter:
    """Examine the Python of this process."""
    return _examined([sys.executable])


def _examined(start: Sequence[str]) -> Interpreter:
    # In a process of its own: a torch that was built for another board may crash it.
    with StepPage() as page:
        try:
            with page.stamped():
                done = subprocess.run(
                    [*start, "-c", _QUERY], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Interpreter(start[0], "?", failure=f"importing torch failed: {error}")
        sees_steps = page.most_rounds > 0
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        said: Any = json.loads(last)
    except ValueError:
        said = None
    if not isinstance(said, dict) or "python" not in said:  # a script around Python may print something else
        code = done.returncode
        end = f"importing torch was ended by signal {-code}" if code < 0 else f"importing torch ended with {code}"
        said = {"python": "?", "failure": (done.stderr.strip().splitlines() or [end])[-1] if code > 0 else end}
    return Interpreter(start[0], sees_steps=sees_steps, **said)


def interpreter_of(command: Sequence[str]) -> list[str] | None:
    """The Python that a command starts, with its own options; None if it starts none. Raises: InputError."""
    found = shutil.which(command[0])
    if found is None:
        raise InputError("no such program", value=command[0])
    if _is_python(found):
        return [found, *_own_options(command[1:])]
    with Path(found).open("rb") as file:
        line = file.readline(4096)
    words = shlex.split(line[2:].decode("utf-8", "replace")) if line.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    path = shutil.which(words[0]) if words else None
    return [path, *words[1:]] if path is not None and _is_python(path) else None


def _is_python(path: str) -> bool:
    return re.fullmatch(r"python[\d.]*", os.path.basename(path)) is not None


def _own_options(words: Sequence[str]) -> list[str]:
    """Options of the interpreter itself, before the script, the module or the text that it runs."""
    options: list[str] = []
    for word in words:
        is_value = bool(options) and options[-1] in WITH_VALUE
        if not is_value and (not word.startswith("-") or word in ("-", "-m", "-c")):
            break
        options.append(word)
    return options
