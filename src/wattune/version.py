"""The one place where the version stands."""

from __future__ import annotations

from pathlib import Path

RELEASE = "0.1.0.dev0"
"""Version of the sources, and of every wheel and sdist built from them; without ``.dev0`` in a release alone."""


def _version() -> str:
    """Version of this package: in a development clone with its commit, such as 0.1.0.dev0+g1a2b3c4d5.

    An installed wheel does not know its commit.
    """
    package = Path(__file__).parent
    clone = package.parents[1]
    # A copy of the package may lie in another project's repository, whose commit says nothing about wattune.
    is_own = package.parent.name == "src" and (clone / "src/wattune_agent").is_dir()
    commit = _commit(clone) if is_own and RELEASE.endswith(".dev0") else None
    return RELEASE if commit is None else f"{RELEASE}+g{commit[:9]}"


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
