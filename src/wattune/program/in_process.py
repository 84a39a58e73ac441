"""A Python program, run in this process: its steps can be counted."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from wattune.errors import InputError, SafetyStop


def in_process(command: Sequence[str]) -> Callable[[], int]:
    """A function that runs this Python program here, and returns its exit code. Raises: InputError."""
    words = list(command)
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
        while words and words[0] in ("-u", "-B", "-O"):
            words = words[1:]
    if not words or not (words[0] == "-m" or words[0].endswith(".py")) or words == ["-m"]:
        raise InputError(
            "a board that executes no programs can only rehearse Python's",
            value=" ".join(command),
            allowed="python FILE.py ..., or python -m MODULE ...",
        )

    own = os.getpid()

    def run() -> int:
        code = started()
        if os.getpid() != own:  # a child that the program forked: its end is not the rehearsal's
            os._exit(code)
        return code

    def started() -> int:
        is_module = words[0] == "-m"
        before = sys.argv, list(sys.path), sys.modules["__main__"]
        sys.argv = words[1:] if is_module else words
        sys.path.insert(0, "" if is_module else str(Path(words[0]).resolve().parent))
        try:
            if is_module:
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except SafetyStop:
            raise
        except Exception:  # noqa: BLE001 - as Python itself ends a program
            traceback.print_exc()
            return 1
        finally:
            sys.argv, sys.path[:], sys.modules["__main__"] = before
            sys.stdout.flush()
        return 0

    return run
