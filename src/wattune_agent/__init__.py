"""The part of wattune that touches a board: clock, sensors, guard, snapshot and restore.

Standard library only, Python 3.6 and newer, so that the folder can be copied to a board alone:
``python3 -m wattune_agent --help``. wattune's own backends use the same code in their process, or over its socket.
"""

from wattune_agent.errors import AgentError

__all__ = ["PROTOCOL", "SERVED", "AgentError"]

SERVED = (2,)
"""Versions of the protocol on the socket that both sides speak, the newest first: that of this minor version of wattune
and, once there is another, that of the minor version before it. A version has a number of its own if the other side
would misread it; a new request or field needs none, since the agent states those that it knows."""

PROTOCOL = SERVED[0]
