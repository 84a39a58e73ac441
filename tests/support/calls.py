"""Counts of what code does, the same on every machine."""

import sys


def calls_of(act):
    """Functions that ``act`` calls in this thread, Python's and C's, together with those that they call."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count
