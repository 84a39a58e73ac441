"""Packages that only parts of wattune need: which extra brings a missing one, and whether torch is new enough."""

from __future__ import annotations

import re
from collections.abc import Iterator

from wattune.errors import InputError

IMPORTED_AS = {"sklearn": "scikit-learn", "PIL": "pillow", "multipart": "python-multipart"}
"""Name of a module -> the distribution that has it, where its name is another one."""


def missing_package(error: ModuleNotFoundError) -> InputError | None:
    """Build the error for a package of an extra that is not installed; None for any other module."""
    module = (error.name or "").partition(".")[0]
    package = IMPORTED_AS.get(module, module.replace("_", "-"))
    extra = next((extra for name, _, extra in _optional() if name == package), None)
    if extra is None:
        return None
    return InputError(
        "a package is not installed that this needs", value=package, hint=f"pip install 'wattune[{extra}]'"
    )


def check_torch() -> None:
    """Check that the torch that is installed is not too old. Raises: InputError."""
    from importlib.metadata import PackageNotFoundError, version

    lowest = next((lowest for name, lowest, _ in _optional() if name == "torch"), "0")
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return  # missing, as its import says, or run from the folder of its source text
    # The builds for Jetson boards are named 2.4.0a0+... and have what 2.4 has.
    if _numbers(installed) < _numbers(lowest):
        raise InputError(
            "the installed torch is too old",
            value=installed,
            allowed=f"{lowest} or newer",
            hint="install the torch that suits this machine (docs/install.md)",
        )


def _numbers(release: str) -> tuple[int, ...]:
    """Major and minor number of a release."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:2])


def _optional() -> Iterator[tuple[str, str, str]]:
    """Name, lowest release and extra of each package that an extra brings."""
    from importlib.metadata import PackageNotFoundError, requires  # imported here: the command line starts without it

    try:
        requirements = requires("wattune") or ()
    except PackageNotFoundError:  # wattune runs from the folder of its source text
        requirements = ()
    for requirement in requirements:
        entry = re.fullmatch(r'([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+);.*\bextra == "(\w+)"', requirement)
        if entry is not None and entry[3] not in ("dev", "docs"):
            yield entry[1], entry[2], entry[3]
