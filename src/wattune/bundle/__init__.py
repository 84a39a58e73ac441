"""Folder to carry to a board without a network: wheels of wattune and its dependencies, and the agent as one file.

torch is left out on purpose: a Jetson needs NVIDIA's own build, for its JetPack.
"""

from __future__ import annotations

from wattune.bundle.writing import Bundle, bundle

__all__ = ["Bundle", "bundle"]
