"""Faults of what is read: power, temperature, over-current; and of work that draws too much."""

import math
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.agent.faults_made import fault
from tests.support.live_devices import virtual
from tests.support.virtual_time import VirtualProgram, VirtualTime

from wattune.errors import SensorError
from wattune.point import Knobs
from wattune_agent.controller import Controller
from wattune_agent.errors import AgentError
from wattune_agent.guarded import SAFETY_EXIT, run_guarded
from wattune_agent.lease import BoardLease, Party

ZONES = "*/thermal_zone*/temp"
FAR_W, FAR_C = 900.0, 120.0  # limits that are never reached


def reads(bench):
    """One reading a tenth of a second later, or None where an error said why not."""
    bench.tree.sleep(0.1)
    return bench.tells(bench.controller.read)


def reads_again(bench):
    """The fault is over: at the second reading at the latest there is one that is right."""
    bench.mend()
    for _ in range(2):
        bench.tree.sleep(0.1)
        try:
            reading = bench.controller.read()
        except AgentError:
            continue
    assert math.isclose(reading["power_w"], bench.tree.board.power_w(), rel_tol=0.05)


class Agent:
    """What the agent does, on the time of the board: a client holds it, and may have asked for a guard."""

    def __init__(self, bench, *, mhz=None, cap_w=None, max_temp_c=None):
        self.bench = bench
        self.keeper = BoardLease(bench.controller, now_s=bench.tree.now_s)
        self.client = Party("a client")
        self.keeper.pin(self.client, mhz or bench.settings[-1])
        self.keeper.guard(self.client, cap_w, max_temp_c)

    def live(self, seconds, *, speaks=True, reads=False):
        """So much time passes; the client is there, and reads the sensor, or is not heard of."""
        end_s, due_s = self.bench.tree.now_s() + seconds, 0.0
        while self.bench.tree.now_s() < end_s:
            self.bench.tree.sleep(0.1)
            self.keeper.sample()
            if self.bench.tree.now_s() >= due_s:
                due_s = self.bench.tree.now_s() + 0.2
                self.keeper.tick()
                if speaks:
                    self.keeper.renew(self.client)
            if reads:
                with suppress(AgentError):
                    self.keeper.read(self.client)
        self.bench.hears(self.client.events)
        self.client.events.clear()

    def end(self):
        """The client lets go."""
        self.keeper.restore(self.client)
        self.bench.hears(self.client.events)


@contextmanager
def passing(tree):
    """Let the board's time pass as real time does, for what is guarded on real time."""
    over = threading.Event()

    def pass_on():
        then_s = time.monotonic()
        while not over.wait(0.01):
            now_s = time.monotonic()
            tree.sleep(now_s - then_s)
            then_s = now_s

    thread = threading.Thread(target=pass_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def guards_a_program(bench, pattern, **limits):
    """A program under ``guard`` whose board loses what matches ``pattern``."""
    time = VirtualTime(bench.tree.sleep)
    with losing(bench, pattern):
        report = run_guarded(bench.controller, VirtualProgram(time, 60.0), clock_mhz=bench.mhz, **limits)
    assert 2.0 < report.time_s < 6.0
    assert report.exit_code == SAFETY_EXIT
    bench.hears(report.events)
    bench.tell(f"exit {report.exit_code}")


def guards_a_training(bench, pattern, **limits):
    """A training whose board loses what matches ``pattern``; the exit code is that of every such ending."""
    device = virtual(bench.tree)
    with tempfile.TemporaryDirectory(prefix="wattune-faults-") as folder:
        with losing(bench, pattern), passing(bench.tree):
            record = bench.trains(device, Path(folder), **limits)
    assert record.time_s > 2.0
    device.close()


@contextmanager
def losing(bench, pattern):
    """What matches ``pattern`` vanishes once there were readings; the lowest clock has to follow."""
    tree, written = bench.tree, []

    def write(path, text):
        if path == bench.high:
            written.append(text)
        if len(written) == 1:
            tree.later(tree.now_s() + 1.5, lambda: tree.fault(pattern, "vanished"))

    tree.before_write = write
    yield
    assert str(tree.board.clocks[0].listed[0]) in written[1:]


# -------------------------------------------------------------------------------------------------------- single reads


@fault("permission to read the sensor is lost")
def _(bench):
    bench.tree.fault(bench.sensor, "forbidden", on="read")
    assert reads(bench) is None
    reads_again(bench)


@fault("the sensor returns garbage, over 1 kW, zero or less")
def _(bench):
    for kind in ("garbage", "empty", "absurd", "zero", "negative"):
        fault_of = bench.tree.fault(bench.sensor, kind)
        assert reads(bench) is None
        assert fault_of.count
        reads_again(bench)


@fault(
    "the energy counter wraps around",
    orin_nano="an INA3221 reports power, it has no counter",
    nano="an INA3221 reports power, it has no counter",
)
def _(bench):
    counters = bench.tree.board._counters
    for path, (zone, begin_uj, range_uj) in counters.items():
        now_uj = int(bench.tree.board.text(path))
        counters[path] = (zone, begin_uj + (range_uj - 100_000 - now_uj), range_uj)  # 0.1 J before the wrap
    counts = [int(bench.tree.board.text(path)) for path in counters]
    bench.controller = Controller(bench.found())
    for _ in range(20):
        reading = reads(bench)
        assert math.isclose(reading["power_w"], bench.tree.board.power_w(), rel_tol=0.05)
    assert any(int(bench.tree.board.text(path)) < then for path, then in zip(counters, counts, strict=True))


@fault("the sensor is stuck at one value")
def _(bench):
    device = virtual(bench.tree)
    try:
        with device.at(Knobs(clock_mhz=bench.other_mhz)) as setting:
            bench.tree.fault(bench.sensor.replace("curr1", "*"), "stuck")
            device.power_w()
            setting.change(Knobs(clock_mhz=bench.mhz))
            for _ in range(30):
                device.wait(0.5)
                try:
                    device.power_w()
                except SensorError as error:
                    bench.tell(f"`{type(error).__name__}`")
            for event in device.events():
                bench.tell(event.kind)
    finally:
        device.close()
    assert len(bench.told) == 1


# ------------------------------------------------------------------------------------------------------- under a limit


@fault("the sensor fails for 1 s under a cap")
def _(bench):
    agent = Agent(bench, cap_w=FAR_W)
    agent.live(2.0)
    bench.tree.fault(bench.sensor, "eio", on="read", until_s=bench.tree.now_s() + 1.0)
    agent.live(3.0)
    assert bench.is_at(bench.settings[-1])
    agent.end()


@fault("the sensor or the thermal zones are gone for over 2 s under their limit, agent")
def _(bench):
    for pattern, limit in ((bench.sensor, {"cap_w": FAR_W}), (ZONES, {"max_temp_c": FAR_C})):
        agent = Agent(bench, **limit)
        agent.live(2.0, reads=True)
        bench.tree.fault(pattern, "vanished")
        agent.live(4.0, reads=True)
        assert bench.is_at(bench.settings[0])
        bench.mend()
        agent.live(2.0, reads=True)
        assert bench.is_at(bench.settings[-1])
        agent.end()


@fault("the sensor or the thermal zones are gone for over 2 s under their limit, `guard`")
def _(bench):
    guards_a_program(bench, bench.sensor, cap_w=FAR_W)
    bench.mend()
    guards_a_program(bench, ZONES, max_temp_c=FAR_C)


@fault("the sensor is gone before `guard` begins")
def _(bench):
    bench.tree.sleep(0.1)
    bench.tree.fault(bench.sensor, "vanished")
    bench.tells(lambda: run_guarded(bench.controller, ["false"], clock_mhz=bench.mhz, cap_w=FAR_W))


@fault("the sensor is gone for over 2 s under a cap, training run", slow=True)
def _(bench):
    guards_a_training(bench, bench.sensor, cap_w=FAR_W)


@fault("the thermal zones are gone for over 2 s under `--max-temp`, training run", slow=True)
def _(bench):
    guards_a_training(bench, ZONES, max_temp_c=FAR_C)


@fault("too hot under `--max-temp`, and the client does not read the sensor")
def _(bench):
    limit_c = bench.tree.board.temperature_c + 3.0
    agent = Agent(bench, max_temp_c=limit_c)
    bench.tree.board.ambient_c += 12.0
    agent.live(120.0)
    assert bench.is_at(bench.settings[0])
    agent.end()


@fault("the work draws more than the cap, and the client does not read the sensor")
def _(bench):
    bench.pin(bench.settings[-1])
    bench.tree.board.load = 1.0
    bench.tree.sleep(1.0)
    bench.controller.read()
    cap_w = 0.8 * reads(bench)["power_w"]
    bench.tree.board.load = bench.load
    agent = Agent(bench, cap_w=cap_w)
    if not bench.load:  # work comes in bursts, so that the board may idle when a reading shows one
        begin_s = bench.tree.now_s() + 2.0
        for number in range(60):
            bench.tree.later(begin_s + 0.3 * number, partial(setattr, bench.tree.board, "load", (number + 1.0) % 2.0))
    agent.live(20.0)
    bench.tree.board.load = 1.0
    agent.live(5.0)
    assert bench.is_at(bench.settings[0])
    assert bench.tree.board.power_w() <= cap_w
    agent.end()


@fault(
    "an over-current event of the supply", nano="its driver does not count them", cpu_laptop="it does not count them"
)
def _(bench):
    before = bench.controller.read()["over_current"]
    bench.tree.rewrite("/sys/class/hwmon/hwmon2/oc1_event_cnt", "1")
    bench.tree.sleep(1.0)
    assert bench.controller.read()["over_current"] == before + 1
    bench.tree.rewrite("/sys/class/hwmon/hwmon2/oc1_event_cnt", "0")
    bench.tell("over-current +1")
