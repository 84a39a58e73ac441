"""The part of wattune that touches a board: clock, sensors, guard, snapshot and restore.

Standard library only, Python 3.6 and newer, so that the folder can be copied to a board alone:
``python3 -m wattune_agent --help``. wattune's own backends use the same code in their process, or over its socket.
"""

from wattune_agent.errors import AgentError

__all__ = ["PROTOCOL", "AgentError"]

PROTOCOL = 2
"""Version of the protocol on the socket. It rises with any change that the other side would misread."""
