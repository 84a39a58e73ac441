"""Client side of a wattune server: models, sweeps, curves, profiles and records over HTTP."""

from wattune.remote.client import Client
from wattune.remote.reporter import Reporter

__all__ = ["Client", "Reporter"]
