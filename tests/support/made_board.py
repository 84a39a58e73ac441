"""A controller in this process whose power is a formula, and that fails where it is told to: for guards and leases."""

from wattune_agent.errors import BadRequest

CLOCKS = (100.0, 200.0, 300.0, 400.0, 500.0)


class MadeBoard:
    """Its power is 10 mW a MHz; ``fails``: the errors of its methods by their names."""

    def __init__(self, settings=CLOCKS, *, window_s=0.0, lag_s=0.0):
        self.settings = list(settings)
        self.window_s, self.lag_s = window_s, lag_s
        self.mhz = None
        self.free_mhz = 500.0
        self.watts = None
        self.temperature_c = 50.0
        self.now_s = 0.0
        self.fails = {}
        self.noticed = []
        self.pins = []
        self.claimed = self.restored = 0

    def _do(self, what):
        if what in self.fails:
            raise self.fails[what]

    def describe(self):
        numbers = {"window_s": self.window_s, "lag_s": self.lag_s, "period_s": 0.0}
        return {"name": "board", "rail": "VDD_IN", "settings_mhz": self.settings, "real": False, **numbers}

    def read(self):
        self._do("read")
        at = self.mhz or self.free_mhz
        watts = at / 100 if self.watts is None else self.watts
        return {"power_w": watts, "temperature_c": self.temperature_c, "clock_mhz": at}

    def claim(self):
        self._do("claim")
        self.claimed += 1

    def pin(self, mhz, others=None):
        self._do("pin")  # what fails leaves the board as it was, or where it was pinned, as a Controller does
        if mhz not in self.settings:
            raise BadRequest("no such clock")
        self.pins.append(mhz)
        self.mhz = mhz
        return {"mhz": mhz}

    def check(self):
        self._do("check")
        noticed, self.noticed = self.noticed, []
        return noticed

    def restore(self):
        self._do("restore")
        self.restored += 1
        self.mhz = None
