"""Data files on the web: fetched once into the cache folder, and used only if the checksum is the stated one."""

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
"""A download that is larger is stopped: the largest of the archives that have a reader, STL-10, has 2.6 GB."""

TIMEOUT_S = 60.0
"""Without a byte from the server for so long, the download has failed."""

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
        """The address without what may be a password or a key."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


File = Path | Download
"""A data file: a path, or what is fetched from the web when it is first needed."""


def local(file: File) -> Path:
    """The path of a data file, downloaded if it is on the web and not in the cache yet.

    The cache is ``$XDG_CACHE_HOME/wattune/data`` or ``~/.cache/wattune/data``. A file appears there whole and with the
    right checksum or not at all. Raises: WorkloadError.
    """
    if not isinstance(file, Download):
        return file
    try:
        import pooch  # and requests with it, which a path needs neither of
    except ImportError as error:
        raise WorkloadError(
            "a download needs the package pooch", value=str(file), hint="pip install 'wattune[data]', or give a path"
        ) from error
    pooch.get_logger().setLevel("ERROR")
    checksum = file.checksum.lower()
    # Two files of one name do not meet, and nothing of the address but letters and digits gets into the path.
    last = re.sub(r"[^\w.-]", "_", PurePosixPath(unquote(urlsplit(file.url).path)).name, flags=re.ASCII)[-80:]
    name = f"{checksum.partition(':')[2][:16]}-{last or 'data'}"
    try:
        return Path(pooch.retrieve(file.url, checksum, fname=name, path=_folder(), downloader=_fetch))
    except ValueError as error:  # pooch's, of the checksum; what was downloaded is gone already
        got = re.search(r"but got (\w+)", str(error))
        raise WorkloadError(
            f"{file} does not have its checksum",
            value=got[1] if got else str(error),
            allowed=checksum,
            hint="nothing of the download is kept",
        ) from error
    except OSError as error:  # requests' exceptions are OSErrors too
        why = re.sub(r"\?[^\s')]*|(?<=//)[^/@\s]*@", "", str(error))  # keys and passwords, as in __str__
        raise WorkloadError(
            f"cannot download {file}", value=why, hint="nothing of the download is kept; or give a path"
        ) from error


def _folder() -> Path:
    return cache_folders()[0] / "data"


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # half an IPv6 address
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
            stack.callback(response.close)  # which pooch leaves open where something goes wrong

        file = stack.enter_context(open(path, "wb"))
        progress = stack.enter_context(Progress(*columns, console=Console(stderr=True)))
        meter = _Meter(file, progress, PurePosixPath(urlsplit(url).path).name)
        fetch = HTTPDownloader(
            progressbar=meter,
            chunk_size=2**16,
            timeout=TIMEOUT_S,
            # The checksum is of the file, not of what a server that compresses makes of it on the way.
            headers={"Accept-Encoding": "identity"},
            hooks={"response": close_after},
        )
        fetch(url, meter, None)


class _Meter:
    """Where pooch writes what arrives; also what it takes for a progress bar, which alone is told the size."""

    def __init__(self, file: BinaryIO, progress: Any, name: str):
        self._file = file
        self._progress = progress
        self._task = progress.add_task(name, total=None)
        self._written = 0
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
        self._written += len(chunk)
        self._check(self._written)
        self._file.write(chunk)
        self._progress.update(self._task, completed=self._written)

    def flush(self) -> None:
        self._file.flush()

    def update(self, _: int) -> None:
        """What pooch counts here are chunks; the bytes are counted where they are written."""

    def reset(self) -> None:
        """Nothing was counted."""

    def close(self) -> None:
        """The bar is closed where it was opened."""

    def _check(self, size: int) -> None:
        if size > MAX_BYTES:
            raise OSError(f"more than {MAX_BYTES} bytes")
