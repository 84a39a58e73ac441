"""Reads of files that may not be there: nothing where there is nothing, or nothing that this user may see."""

import math
from typing import List, Optional

from wattune_agent.errors import AgentError
from wattune_agent.tree import Tree

__all__ = ["first_text", "number", "real", "text"]


def text(tree: Tree, path: str) -> str:
    """The file's text; empty where it cannot be had."""
    try:
        return tree.read(path) if tree.exists(path) else ""
    except AgentError:
        return ""


def number(tree: Tree, path: str) -> Optional[float]:
    """The number at the file's beginning; None where there is none."""
    try:
        value = float(text(tree, path).split(None, 1)[0])
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) else None


def first_text(tree: Tree, paths: List[str]) -> str:
    """The text of the first of the files that has any."""
    for path in paths:
        found = text(tree, path)
        if found:
            return found
    return ""


def real(tree: Tree, path: str) -> str:
    """The path without links; the path itself where there is no such file, or where it leads out of the tree."""
    try:
        return tree.real(path) if tree.exists(path) else path
    except AgentError:
        return path
