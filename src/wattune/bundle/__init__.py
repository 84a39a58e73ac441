"""A folder to carry to a board that has no network: wheels of wattune and of what it needs, and the agent as one file.

torch is left out on purpose: a Jetson's is NVIDIA's own, for its JetPack.
"""

from __future__ import annotations

from wattune.bundle.writing import Bundle, bundle

__all__ = ["Bundle", "bundle"]
