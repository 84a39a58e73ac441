"""The project's own part of a bundle: wattune's wheel, the agent as one file, and the files that start it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipapp
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from wattune.errors import OutputError

PACKAGES = ("wattune", "wattune_agent")
INSTALL_METADATA = frozenset({"INSTALLER", "REQUESTED", "direct_url.json"})
"""Metadata that pip adds to that of the wheel: how and from where it was installed."""


def write_wheel(installed: Distribution, folder: Path) -> None:
    """Repack wattune's wheel from the files installed here, so that neither its sources nor a network are needed.

    Raises: OutputError if it cannot be packed.
    """
    with TemporaryDirectory(prefix="wattune-wheel-") as unpacked:
        tree = Path(unpacked)
        for package in PACKAGES:
            _copy(package, tree)
        deploy = tree / f"wattune-{installed.version}.data" / "data" / "share" / "wattune" / "deploy"
        deploy.mkdir(parents=True)
        for file in deploy_files():
            shutil.copy2(file, deploy)
        for entry in installed.files or ():
            if entry.parts[0].endswith(".dist-info") and entry.name not in INSTALL_METADATA:
                (tree / entry).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(entry.locate()), tree / entry)
        command = [sys.executable, "-m", "wheel", "pack", "--dest-dir", str(folder), str(tree)]
        packing = subprocess.run(command, capture_output=True, text=True, check=False)
        if packing.returncode:
            raise OutputError(
                "cannot pack wattune's wheel", value=(packing.stderr.splitlines() or ["wheel failed"])[-1]
            )


def write_agent(folder: Path) -> Path:
    """Pack the agent into one file that runs on Python 3.6 and later."""
    path = folder / "wattune-agent.pyz"
    with TemporaryDirectory(prefix="wattune-agent-") as unpacked:
        tree = Path(unpacked)
        _copy("wattune_agent", tree)
        shutil.copy2(tree / "wattune_agent" / "__main__.py", tree)
        zipapp.create_archive(tree, path, interpreter="/usr/bin/env python3", compressed=True)
    return path


def deploy_files() -> list[Path]:
    """The files that set the agent up: beside the sources in a clone, below ``share`` in an installation."""
    beside = _home("wattune").parents[1] / "deploy"
    shared = Path(sysconfig.get_path("data")) / "share" / "wattune" / "deploy"
    return sorted(file for file in (beside if beside.is_dir() else shared).glob("*") if file.is_file())


def _home(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _copy(package: str, folder: Path) -> None:
    shutil.copytree(_home(package), folder / package, ignore=shutil.ignore_patterns("__pycache__"))
