"""Readers for published data sets and files, downloads, and larger models: reached by name, never by the main job.

Third-party packages that some of it needs come with ``pip install 'wattune[data]'``.
"""

from wattune.datasets.downloads import Download
from wattune.datasets.graphs import Graphs
from wattune.datasets.image_archives import Cifar, Idx, Stl10, Svhn
from wattune.datasets.image_folders import ImageFolders
from wattune.datasets.npz import Npz
from wattune.datasets.series import Series
from wattune.datasets.texts import Text

__all__ = ["Cifar", "Download", "Graphs", "Idx", "ImageFolders", "Npz", "Series", "Stl10", "Svhn", "Text"]
