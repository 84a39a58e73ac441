"""Several devices that behave as one, for a job whose devices wait for each other in every step."""

from __future__ import annotations

from wattune.devices.group.device_group import DeviceGroup
from wattune.devices.group.opening import device_group, open_group, open_member

__all__ = ["DeviceGroup", "device_group", "open_group", "open_member"]
