"""Lower bounds of what faces the network: past the vulnerabilities that are known."""

from __future__ import annotations

import pytest
from packaging.version import Version
from tests.support.lower_bounds import lower_bounds

FIXED = {
    ("server", "h11"): ("0.16", "CVE-2025-43859"),
    ("server", "jinja2"): ("3.1.6", "CVE-2025-27516"),
    ("server", "python-multipart"): ("0.0.26", "CVE-2024-53981, CVE-2026-40347"),
    ("server", "starlette"): ("0.49.1", "CVE-2025-62727"),
    ("cluster", "ray"): ("2.52", "CVE-2025-62593"),
    ("data", "pillow"): ("10.3", "CVE-2024-28219"),
}
"""Extra and package -> the first release without these vulnerabilities."""


@pytest.mark.parametrize(("extra", "package"), FIXED)
def test_lower_bound_is_past_known_vulnerabilities(extra, package):
    fixed, names = FIXED[extra, package]
    assert Version(lower_bounds(extra)[package]) >= Version(fixed), names
