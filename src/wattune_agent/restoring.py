"""The restore of a board's files: limits in pairs, the memory clock's files together, others one by one."""

from typing import Dict, List, Optional, Tuple

from wattune_agent.emc import MemoryLock
from wattune_agent.errors import AgentError, NotRestored
from wattune_agent.limits import PAIRS, PAUSE_S, TRIES, Failure, FrequencyLimits, compared, per_mhz_of, tolerance_of
from wattune_agent.tree import Tree

__all__ = ["bring_back", "restore_all"]


def restore_all(tree: Tree, texts: Dict[str, str]) -> None:
    """Write back each file's text, as ``bring_back``. Raises: NotRestored, after restoring as much as possible."""
    failures = bring_back(tree, texts)
    if failures:
        raise NotRestored("; ".join(failure.text for failure in failures))


def bring_back(tree: Tree, texts: Dict[str, str]) -> List[Failure]:
    """Write back each file's text, in this order but limits in pairs; returns the failures.

    Every file that can be restored is, even if others fail.
    """
    failures: List[Failure] = []
    restored = set()
    for path, text in texts.items():
        if path in restored:
            continue
        memory = MemoryLock.among(tree, list(texts)) if MemoryLock.owns(path) else None
        if memory is not None and path in memory.files():
            restored |= set(memory.files())
            failures += memory.restore(texts)
            continue
        pair = _pair(path, texts)
        if pair is None:
            failures += _write(tree, path, text)
            continue
        low_path, high_path, per_mhz = pair
        restored |= {low_path, high_path}
        failures += FrequencyLimits(tree, low_path, high_path, per_mhz).restore(texts[low_path], texts[high_path])
    return failures


def _pair(path: str, texts: Dict[str, str]) -> Optional[Tuple[str, str, int]]:
    folder, _, name = path.rpartition("/")
    for high, (low, _) in PAIRS.items():
        low_path, high_path = folder + "/" + low, folder + "/" + high
        if name in (low, high) and low_path in texts and high_path in texts:
            return low_path, high_path, per_mhz_of(path)
    return None


def _write(tree: Tree, path: str, text: str) -> List[Failure]:
    failures: List[Failure] = []
    for attempt in range(TRIES):
        if attempt:
            tree.sleep(PAUSE_S)
        errors: Dict[str, str] = {}
        try:
            tree.write(path, text)
        except AgentError as error:
            errors[path] = str(error)
        failures = compared(tree, {path: text}, errors, tolerance_of(path))
        if not failures:
            break
    return failures
