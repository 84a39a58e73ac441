"""What is our own: a wheel of wattune, the agent as one file, and the files that start it."""

from __future__ import annotations

import base64
import hashlib
import io
import sysconfig
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("wattune", "wattune_agent")
_AGENT_MAIN = "import sys\n\nfrom wattune_agent.__main__ import main\n\nsys.exit(main())\n"


def _sources() -> Iterable[tuple[Path, str]]:
    """Every file of the two packages, and its name inside an archive."""
    for package in PACKAGES:
        home = _home(package)
        for file in sorted(home.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file, f"{package}/{file.relative_to(home).as_posix()}"


def _home(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def write_wheel(installed: Distribution, folder: Path) -> Path:
    """A wheel of wattune as it is installed here, so that neither its sources nor a network are needed.

    Source: PyPA specification "Binary distribution format".
    """
    metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO")
    entries = installed.read_text("entry_points.txt")
    assert metadata is not None
    assert entries is not None
    stem = f"wattune-{installed.version}"
    files = {name: file.read_bytes() for file, name in _sources()}
    files |= {f"{stem}.data/data/share/wattune/deploy/{file.name}": file.read_bytes() for file in deploy_files()}
    files[f"{stem}.dist-info/METADATA"] = metadata.encode()
    files[f"{stem}.dist-info/entry_points.txt"] = entries.encode()
    files[f"{stem}.dist-info/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: wattune\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    path = folder / f"{stem}-py3-none-any.whl"
    path.write_bytes(_zipped(files))
    return path


def write_agent(folder: Path) -> Path:
    """The agent as one file that any Python from 3.6 on runs."""
    files = {name: file.read_bytes() for file, name in _sources() if name.startswith("wattune_agent/")}
    path = folder / "wattune-agent.pyz"
    path.write_bytes(b"#!/usr/bin/env python3\n" + _zipped({**files, "__main__.py": _AGENT_MAIN.encode()}))
    path.chmod(0o755)
    return path


def deploy_files() -> list[Path]:
    """The files that set the agent up: beside the sources in a clone, below ``share`` where wattune is installed."""
    beside = _home("wattune").parents[1] / "deploy"
    shared = Path(sysconfig.get_path("data")) / "share" / "wattune" / "deploy"
    return sorted(file for file in (beside if beside.is_dir() else shared).glob("*") if file.is_file())


def _zipped(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # dated 1980: the same content makes the same file
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return made.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
