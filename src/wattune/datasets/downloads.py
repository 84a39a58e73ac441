"""Data files on the web: downloaded once into the cache folder, and used only if the checksum matches."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from wattune.errors import WorkloadError
from wattune.files import cache_folders

MAX_BYTES = 16 * 2**30
"""Limit on the size of a download. STL-10, the largest archive with a reader, has 2.6 GB."""

TIMEOUT_S = 60.0
"""Longest wait for the next byte from the server before a download fails."""

_DIGITS = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}


@dataclass(frozen=True)
class Download:
    """A file on the web. ``checksum``: "md5:...", "sha1:...", "sha256:..." or "sha512:...", in hexadecimal.

    Raises: WorkloadError for another kind of address or checksum.
    """

    url: str
    checksum: str

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not re.fullmatch(r"https?://[!-~]+", self.url) or not _host(self.url):
            raise WorkloadError("url", value=self.url, allowed='an address "https://..." or "http://..."')
        kind, _, digits = self.checksum.partition(":") if isinstance(self.checksum, str) else ("", "", "")
        if not re.fullmatch(f"[0-9a-fA-F]{{{_DIGITS.get(kind, 0)}}}", digits) or not digits:
            raise WorkloadError(
                "checksum",
                value=self.checksum,
                allowed=", ".join(f'"{name}:" and {count} digits' for name, count in _DIGITS.items()),
            )

    def __str__(self) -> str:
        """The address without its user, password and query, which may be secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


File = Path | Download
"""A data file: a path, or a file that is downloaded when it is first needed."""


def local(file: File) -> Path:
    """Return the path of a data file, after downloading it if it is on the web and not cached yet.

    The cache is ``$XDG_CACHE_HOME/wattune/data`` or ``~/.cache/wattune/data``. It only ever holds complete files whose
    checksum matches. Raises: WorkloadError.
    """
    if not isinstance(file, Download):
        return file
    try:
        import pooch  # here, because a path needs neither it nor requests, which it imports
    except ImportError as error:
        raise WorkloadError(
            "a download needs the package pooch", value=str(file), hint="pip install 'wattune[data]', or give a path"
        ) from error
    pooch.get_logger().setLevel("ERROR")
    checksum = file.checksum.lower()
    # The checksum keeps files with the same name apart; only harmless characters of the address get into the path.
    basename = re.sub(r"[^\w.-]", "_", PurePosixPath(unquote(urlsplit(file.url).path)).name, flags=re.ASCII)[-80:]
    name = f"{checksum.partition(':')[2][:16]}-{basename or 'data'}"
    try:
        return Path(pooch.retrieve(file.url, checksum, fname=name, path=_folder(), downloader=_fetch))
    except ValueError as error:  # pooch's, for the checksum; it has deleted the download
        digest = re.search(r"but got (\w+)", str(error))
        raise WorkloadError(
            f"{file} does not have its checksum",
            value=digest[1] if digest else str(error),
            allowed=checksum,
            hint="the download was deleted",
        ) from error
    except OSError as error:  # requests' exceptions are OSErrors too
        reason = re.sub(r"\?[^\s')]*|(?<=//)[^/@\s]*@", "", str(error))  # without secrets, as in __str__
        raise WorkloadError(
            f"cannot download {file}", value=reason, hint="the download was deleted; try again, or give a path"
        ) from error


def _folder() -> Path:
    return cache_folders()[0] / "data"


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # an incomplete IPv6 address
        return None


def _fetch(url: str, path: str, _: object) -> None:
    from pooch import HTTPDownloader
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("downloading {task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with ExitStack() as stack:

        def close_after(response: Any, **_: object) -> None:
            stack.callback(response.close)  # pooch leaves it open if something goes wrong

        file = stack.enter_context(open(path, "wb"))
        progress = stack.enter_context(Progress(*columns, console=Console(stderr=True)))
        meter = _ProgressWriter(file, progress, PurePosixPath(urlsplit(url).path).name)
        fetch = HTTPDownloader(
            progressbar=meter,
            chunk_size=2**16,
            timeout=TIMEOUT_S,
            # The checksum is that of the file, not of what the server may compress it to on the way.
            headers={"Accept-Encoding": "identity"},
            hooks={"response": close_after},
        )
        fetch(url, meter, None)


class _ProgressWriter:
    """Both the file that pooch writes to and its progress bar, because only a progress bar is given the total size."""

    def __init__(self, file: BinaryIO, progress: Any, name: str):
        self._file = file
        self._progress = progress
        self._task = progress.add_task(name, total=None)
        self._written_bytes = 0
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    @total.setter
    def total(self, total: int) -> None:
        self._total = total
        self._check(total)
        self._progress.update(self._task, total=total or None)

    def write(self, chunk: bytes) -> None:
        self._written_bytes += len(chunk)
        self._check(self._written_bytes)
        self._file.write(chunk)
        self._progress.update(self._task, completed=self._written_bytes)

    def flush(self) -> None:
        self._file.flush()

    def update(self, _: int) -> None:
        """Do nothing: pooch counts chunks here, and ``write`` counts the bytes."""

    def reset(self) -> None:
        """Do nothing: nothing has been counted."""

    def close(self) -> None:
        """Do nothing: ``_fetch`` opened the bar and closes it."""

    def _check(self, size: int) -> None:
        if size > MAX_BYTES:
            raise OSError(f"more than {MAX_BYTES} bytes")
