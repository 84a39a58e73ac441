"""Workloads: models, data, losses, metrics, and the files that describe them."""

from wattune.workloads.data import Augmentation, Data, Loaders
from wattune.workloads.example import REFERENCE_VERSION, example_workload, reference_workloads
from wattune.workloads.image_folders import ImageFolders
from wattune.workloads.metrics import Metric
from wattune.workloads.model import Model
from wattune.workloads.models import MODELS
from wattune.workloads.npz import Npz
from wattune.workloads.optimizers import OptimizerRule
from wattune.workloads.served import device_workload, proxy_workload, served_example, served_model
from wattune.workloads.texts import Text
from wattune.workloads.toml import load_workload
from wattune.workloads.workload import DATA_TYPES, Workload

__all__ = [
    "DATA_TYPES",
    "MODELS",
    "REFERENCE_VERSION",
    "Augmentation",
    "Data",
    "ImageFolders",
    "Loaders",
    "Metric",
    "Model",
    "Npz",
    "OptimizerRule",
    "Text",
    "Workload",
    "device_workload",
    "example_workload",
    "load_workload",
    "proxy_workload",
    "reference_workloads",
    "served_example",
    "served_model",
]
