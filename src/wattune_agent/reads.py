"""Reads of files that may not exist: empty if the file is missing, or if this user may not read it."""

import math
from typing import List, Optional

from wattune_agent.errors import AgentError
from wattune_agent.tree import Tree

__all__ = ["first_text", "number", "real", "text"]


def text(tree: Tree, path: str) -> str:
    """The file's text; empty if it cannot be read."""
    try:
        return tree.read(path) if tree.exists(path) else ""
    except AgentError:
        return ""


def number(tree: Tree, path: str) -> Optional[float]:
    """The number at the beginning of the file; None if there is no number."""
    try:
        value = float(text(tree, path).split(None, 1)[0])
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) else None


def first_text(tree: Tree, paths: List[str]) -> str:
    """The text of the first file that has any."""
    for path in paths:
        content = text(tree, path)
        if content:
            return content
    return ""


def real(tree: Tree, path: str) -> str:
    """The path without links; the path itself if the file does not exist, or if it leads out of the tree."""
    try:
        return tree.real(path) if tree.exists(path) else path
    except AgentError:
        return path
