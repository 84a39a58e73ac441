"""Workloads: models, data, losses, metrics, and the files that describe them."""

from wattune.workloads.data import Augmentation as Augmentation
from wattune.workloads.data import Data as Data
from wattune.workloads.data import Loaders as Loaders
from wattune.workloads.example import REFERENCE_VERSION as REFERENCE_VERSION
from wattune.workloads.example import example_workload as example_workload
from wattune.workloads.example import reference_workloads as reference_workloads
from wattune.workloads.image_folders import ImageFolders as ImageFolders
from wattune.workloads.metrics import Metric as Metric
from wattune.workloads.model import Model as Model
from wattune.workloads.models import MODELS as MODELS
from wattune.workloads.npz import Npz as Npz
from wattune.workloads.optimizers import OptimizerRule as OptimizerRule
from wattune.workloads.served import device_workload as device_workload
from wattune.workloads.served import proxy_workload as proxy_workload
from wattune.workloads.served import served_example as served_example
from wattune.workloads.served import served_model as served_model
from wattune.workloads.texts import Text as Text
from wattune.workloads.toml import load_workload as load_workload
from wattune.workloads.workload import DATA_TYPES as DATA_TYPES
from wattune.workloads.workload import Workload as Workload
