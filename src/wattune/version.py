"""The one place where the version stands."""

from __future__ import annotations

from pathlib import Path

RELEASE = "0.1.0.dev0"
"""Version of the sources; without ``.dev0`` in a release alone."""


def _version() -> str:
    """The release; before it the development version of the commit, such as 0.1.0.dev0+g1a2b3c4d5.

    A clone tells its commit, and an installation was told the commit when it was built.
    """
    if not RELEASE.endswith(".dev0"):
        return RELEASE
    if (commit := _commit(Path(__file__).parents[2])) is not None:
        return f"{RELEASE}+g{commit[:9]}"
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("wattune")
    except PackageNotFoundError:
        return RELEASE


def _commit(clone: Path) -> str | None:
    """Commit that is checked out in a clone, or in a worktree of a clone; None without one."""
    # Read from git's files, since starting git takes longer than a short command of ours.
    git = clone / ".git"
    try:
        if git.is_file():
            git = clone / git.read_text().removeprefix("gitdir: ").strip()
        branch = (git / "HEAD").read_text().strip()
        if not branch.startswith("ref: "):
            return branch
        branch = branch.removeprefix("ref: ")
        shared = git / (git / "commondir").read_text().strip() if (git / "commondir").exists() else git
        if (shared / branch).exists():
            return (shared / branch).read_text().strip()
        packed = (line.partition(" ") for line in (shared / "packed-refs").read_text().splitlines())
        return {name: commit for commit, _, name in packed}.get(branch)
    except OSError:
        return None


__version__ = _version()
