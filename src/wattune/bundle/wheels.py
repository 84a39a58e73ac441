"""Wheels of wattune's dependencies for another Python and another machine, fetched with pip."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from email.parser import Parser
from importlib.metadata import Distribution
from pathlib import Path
from typing import TYPE_CHECKING

from wattune.errors import InputError

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

EXCLUDED = frozenset({"torch"})
OLDEST_GLIBC = 17
"""manylinux2014 is glibc 2.17; wheels for a glibc older than the board's run there too. Source: PEP 599, PEP 600."""
MAX_ROUNDS = 20
"""Deepest chain of dependencies that is followed; real ones are far shorter."""
PLATFORM = re.compile(r"(manylinux2014|manylinux_2_(?P<minor>\d+)|linux)_(?P<machine>aarch64|x86_64|armv7l)")


def fetch(installed: Distribution, wheels: Path, python: str, platform: str) -> None:
    """Download wheels until everything that the board needs is in the folder.

    pip fetches the board's wheels, but evaluates markers such as ``python_version < "3.11"`` for the Python and machine
    that it runs on. So dependencies are resolved here, and pip downloads single wheels.

    Raises: InputError if a wheel is not available, or the wheels' requirements contradict each other.
    """
    from packaging.utils import canonicalize_name, parse_wheel_filename

    board = _TargetPython(python, platform)
    specifiers: dict[str, SpecifierSet] = {}
    for _ in range(MAX_ROUNDS):
        present = {}
        for wheel in wheels.glob("*.whl"):
            name, version, _build, _tags = parse_wheel_filename(wheel.name)
            if name in specifiers and not specifiers[name].contains(version, prereleases=True):
                wheel.unlink()  # downloaded before all of its requirements were known
            else:
                present[name] = wheel
        missing, visited, todo = set(), set[str](), board.needs(installed.requires or ())
        while todo:
            requirement = todo.pop()
            name = canonicalize_name(requirement.name)
            specifiers[name] = specifiers.get(name, requirement.specifier) & requirement.specifier
            if name not in present:
                missing.add(name)
            elif str(requirement) not in visited:
                visited.add(str(requirement))
                todo += board.needs(_requires(present[name]), requirement.extras)
        conflicts = {
            name
            for name, wheel in present.items()
            if name in specifiers
            and not specifiers[name].contains(parse_wheel_filename(wheel.name)[1], prereleases=True)
        }
        if not missing and not conflicts:
            return
        if missing:
            _download([f"{name}{specifiers[name]}" for name in sorted(missing)], wheels, board)
    raise InputError("pip finds no compatible versions", value=", ".join(sorted(conflicts | missing)))


class _TargetPython:
    """The Python and the platform that wheels are for."""

    def __init__(self, python: str, platform: str):
        match = PLATFORM.fullmatch(platform)
        assert match is not None
        self.python = python
        machine = match["machine"]
        self.platforms = [platform]
        if not platform.startswith("linux"):
            newest = int(match["minor"] or OLDEST_GLIBC)
            older = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, OLDEST_GLIBC - 1, -1)]
            self.platforms = [*older, f"manylinux2014_{machine}"]
        self._environment = {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "sys_platform": "linux",
            "os_name": "posix",
            "platform_system": "Linux",
            "platform_machine": machine,
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }

    def needs(self, requirements: Iterable[str], extras: Iterable[str] = ()) -> list[Requirement]:
        """The requirements whose markers hold on the board."""
        from packaging.requirements import Requirement
        from packaging.utils import canonicalize_name

        extra_names = ("", *extras)
        result = []
        for requirement in map(Requirement, requirements):
            marker, requirement.marker = requirement.marker, None
            if canonicalize_name(requirement.name) not in EXCLUDED and (
                marker is None or any(marker.evaluate({**self._environment, "extra": extra}) for extra in extra_names)
            ):
                result.append(requirement)
        return result


def _requires(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])


def _download(requirements: Sequence[str], wheels: Path, board: _TargetPython) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--no-deps", "--dest", str(wheels)]
    command += ["--implementation", "cp", "--python-version", board.python]
    for platform in board.platforms:
        command += ["--platform", platform]
    result = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise InputError("pip cannot fetch the wheels", value=lines[-1].removeprefix("ERROR: "))
