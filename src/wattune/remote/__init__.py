"""A wattune server, as a device sees it: models, sweeps, curves, profiles and records over HTTP."""

from wattune.remote.reporter import Reporter
from wattune.remote.server import Offer, Server

__all__ = ["Offer", "Reporter", "Server"]
