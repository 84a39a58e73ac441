"""The oldest releases that an extra of the package allows, as pinned requirements: ``python -m ... EXTRA``."""

from __future__ import annotations

import sys
from importlib.metadata import requires

from packaging.requirements import Requirement


def lower_bounds(extra: str) -> dict[str, str]:
    """Name -> lowest version, of the extra alone."""
    found = {}
    for text in requires("wattune") or ():
        requirement = Requirement(text)
        if requirement.name == "wattune":  # an extra that this one includes
            continue
        marker = requirement.marker
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            (bound,) = [specifier.version for specifier in requirement.specifier if specifier.operator == ">="]
            found[requirement.name] = bound
    return found


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in sorted(lower_bounds(sys.argv[1]).items())))
