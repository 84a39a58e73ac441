"""Writing of the bundle, part by part."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from wattune.bundle.packing import deploy_files, write_agent, write_wheel
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
    installed = next((one for one in distributions(name="wattune") if one.read_text("WHEEL")), None)
    if installed is None:
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
        write_wheel(installed, folder / "wheels")
        agent = write_agent(folder)
        deploy = tuple(Path(shutil.copy(file, folder / "deploy")) for file in deploy_files())
        say(f"fetching wheels for Python {python} on {platform}")
        fetch(installed, folder / "wheels", python, platform)
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
