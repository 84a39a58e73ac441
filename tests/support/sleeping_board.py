"""A board whose kernel can suspend it, with a clock that wakes it; no real time passes while it is asleep.

``python -m tests.support.sleeping_board ROOT SOCKET``: an agent that serves it, until it is terminated.
"""

import sys
from pathlib import Path

from tests.support.agent_trees import put

from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.errors import FileFailed
from wattune_agent.server import serve
from wattune_agent.suspend import ALARM, CLOCK, STATE
from wattune_agent.tree import Tree

EPOCH_S = 1_750_000_000


def sleeping_tree(root, states="freeze mem", wakeup="enabled"):
    """The files that suspension needs, beside those that are there; returns its root."""
    put(root, STATE, states + "\n")
    put(root, ALARM, "\n")
    put(root, CLOCK + "/since_epoch", f"{EPOCH_S}\n")
    put(root, CLOCK + "/device/power/wakeup", wakeup + "\n")
    return root


class SleepingTree(Tree):
    """Files that answer like a kernel. ``arms``: the alarm takes a time; ``wakes_s``: something else wakes the board
    that early; ``fails``: a driver keeps it from being suspended. ``states``: the states that were entered."""

    def __init__(self, root, *, arms=True, wakes_s=None, fails=False):
        super().__init__(str(root))
        self.states, self._asleep_s = [], 0.0
        self._arms, self._wakes_s, self._fails = arms, wakes_s, fails

    def asleep_s(self):
        return self._asleep_s

    def write(self, path, text):
        if path == ALARM:
            self._alarm(text)
        elif path == STATE:
            self._suspend(text)
        else:
            super().write(path, text)

    def _alarm(self, text):
        if text == "0":
            put(self.root, ALARM, "\n")
        elif self.read(ALARM):
            raise FileFailed(f"{ALARM} cannot be written: Device or resource busy")
        elif self._arms:
            put(self.root, ALARM, f"{int(self.read(CLOCK + '/since_epoch')) + int(text[1:])}\n")

    def _suspend(self, state):
        assert self.read(ALARM), "it would sleep for ever"
        if self._fails:
            raise FileFailed(f"{STATE} cannot be written: Device or resource busy")
        now_s = int(self.read(CLOCK + "/since_epoch"))
        seconds = min(int(self.read(ALARM)) - now_s, self._wakes_s or float("inf"))
        self.states.append(state)
        self._asleep_s += seconds
        put(self.root, CLOCK + "/since_epoch", f"{now_s + int(seconds)}\n")


if __name__ == "__main__":
    board = find_board(SleepingTree(sleeping_tree(Path(sys.argv[1]))), "jetson")
    serve(Controller(board), sys.argv[2])
