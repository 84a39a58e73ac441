"""Writing of the bundle, part by part: wheels, the agent as one file, and the files that start it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipapp
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from wattune.bundle.wheels import PLATFORM, fetch
from wattune.errors import InputError, OutputError

PYTHONS = ("3.10", "3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk: the wheels, the agent, the files that set it up, and the instructions."""

    folder: Path
    wheels: tuple[Path, ...]
    agent: Path
    deploy: tuple[Path, ...]
    readme: Path


def bundle(
    folder: str | Path,
    *,
    python: str = "3.10",
    platform: str = "manylinux2014_aarch64",
    say: Callable[[str], None] = lambda text: None,
) -> Bundle:
    """Write a bundle for a Python version and a platform tag of pip's. Downloads wheels with pip.

    Raises: InputError for an unsupported Python or platform, or if pip cannot fetch a wheel; OutputError.
    """
    folder = Path(folder)
    if python not in PYTHONS:
        raise InputError("--python", value=python, allowed=f"{', '.join(PYTHONS)}; the agent alone needs no wheels")
    if not PLATFORM.fullmatch(platform):
        raise InputError(
            "--platform", value=platform, allowed="such as manylinux2014_aarch64 or manylinux_2_31_aarch64"
        )
    # Sources in the path may have metadata beside them that does not belong to an installed wheel.
    distribution = next((one for one in distributions(name="wattune") if one.read_text("WHEEL")), None)
    if distribution is None:
        raise InputError("wattune is not installed in this Python", hint="run `pip install .` in the clone")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OutputError("the output folder is not empty", value=str(folder), allowed="a new or an empty folder")
    except OSError as error:
        raise OutputError("cannot write the bundle", value=f"{folder}: {error.strerror}") from error
    try:
        for part in ("wheels", "deploy"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        say("packing wattune and its agent")
        write_wheel(distribution, folder / "wheels")
        agent = write_agent(folder)
        deploy = tuple(Path(shutil.copy(file, folder / "deploy")) for file in deploy_files())
        say(f"fetching wheels for Python {python} on {platform}")
        fetch(distribution, folder / "wheels", python, platform)
        readme = folder / "README.txt"
        readme.write_text(_README.format(python=python, platform=platform), encoding="utf-8")
    except BaseException as error:
        # Half a bundle is useless, and would block the next attempt.
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise OutputError("cannot write the bundle", value=f"{folder}: {error.strerror}") from error
        raise
    return Bundle(folder, tuple(sorted((folder / "wheels").iterdir())), agent, deploy, readme)


_README = """wattune for a board without a network, for Python {python} on {platform}.

wheels/             wattune and its dependencies except torch; install your board's torch first, then:
                    python{python} -m pip install --no-index --find-links wheels wattune
wattune-agent.pyz   the part that controls the board, as one file for Python 3.6 and later, without dependencies:
                    sudo python3 wattune-agent.pyz serve
                    python3 wattune-agent.pyz guard --device jetson --cap 10W -- python3 train.py
deploy/             files that start the agent with the system and let a group use it

On JetPack 4 and 5, whose Pythons are too old for wattune itself, install wattune-agent.pyz only.
pip looks for torch as well: if it does not find your board's, add --no-deps and name the wheels: wheels/*.whl
"""


PACKAGES = ("wattune", "wattune_agent")
INSTALL_METADATA = frozenset({"INSTALLER", "REQUESTED", "direct_url.json"})
"""Metadata that pip adds to that of the wheel: how and from where it was installed."""


def write_wheel(distribution: Distribution, folder: Path) -> None:
    """Repack wattune's wheel from the files installed here, so that neither its sources nor a network are needed.

    Raises: OutputError if it cannot be packed.
    """
    with TemporaryDirectory(prefix="wattune-wheel-") as wheel_folder:
        tree = Path(wheel_folder)
        for package in PACKAGES:
            _copy(package, tree)
        deploy = tree / f"wattune-{distribution.version}.data" / "data" / "share" / "wattune" / "deploy"
        deploy.mkdir(parents=True)
        for file in deploy_files():
            shutil.copy2(file, deploy)
        for entry in distribution.files or ():
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
    with TemporaryDirectory(prefix="wattune-agent-") as temporary:
        tree = Path(temporary)
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
