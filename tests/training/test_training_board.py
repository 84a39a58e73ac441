"""What a training does with a board that says something of itself: temperature, events, a guard of its own."""

from __future__ import annotations

import pytest
from tests.support import training_runs as made

from wattune.devices import Conditions, SimulatedDevice
from wattune.errors import DeviceError, InputError
from wattune.power.limiter import check_limit
from wattune.power.monitor import BoardMonitor
from wattune.profiling import profile_key
from wattune.records import BoardEvent
from wattune.training import train


class Telling(SimulatedDevice):
    """A simulated board that also says how it is: its temperature follows its clock, with a lag."""

    def __init__(self, *, hot_above_mhz=300.0, **changes):
        super().__init__(made.board(**changes))
        self.hot_above_mhz = hot_above_mhz
        self.happens: list[BoardEvent] = []
        self.handed: list[tuple[float | None, float | None, float]] = []
        self.throttled_until_s = 0.0
        self.celsius, self.since_s = 50.0, 0.0

    def conditions(self):
        now_s = self.now_s()
        goal = 90.0 if self.current()["clock_mhz"] > self.hot_above_mhz else 60.0
        self.celsius += (goal - self.celsius) * min(1.0, (now_s - self.since_s) / 5.0)
        self.since_s = now_s
        throttled = ("gpu-balanced",) if now_s < self.throttled_until_s else ()
        return Conditions(temperature_c=self.celsius, throttled=throttled, over_current=int(now_s // 4))

    def events(self):
        due = tuple(event for event in self.happens if event.time_s <= self.now_s())
        self.happens = [event for event in self.happens if event not in due]
        return due

    def arm_guard(self, limit):
        self.handed.append((limit.limit_w, limit.max_temp_c, self.current()["clock_mhz"]))


def long(**changes):
    """Minutes of the board's time. In large steps they take the least of ours."""
    return made.workload(target=None, budget_samples=30_000, evaluate_every=3000, **changes)


@pytest.mark.slow
def test_too_hot_is_answered_like_too_much_power():
    device = Telling()
    record = train(device, long(), made.plan(batch_size=32), max_temp_c=80.0)
    downs = [event for event in record.guard if event.action == "down"]
    assert downs
    assert downs[0].setting == 537.6
    assert all(event.temperature_c > 80.0 for event in downs)
    assert record.max_temp_c == 80.0
    assert record.temperature_max_c > 80.0
    assert record.ended == "budget used up"
    free = train(Telling(), long(), made.plan(batch_size=32))
    assert free.guard == ()
    assert (free.max_temp_c, free.temperature_max_c > 80) == (None, True)


@pytest.mark.slow
def test_a_board_that_does_not_tell_its_temperature_any_more_is_stopped_for_safety():
    class Numb(Telling):
        numb_s = (4.0, 5.5)  # short enough to be waited for
        at_lowest_s = None

        def conditions(self):
            conditions = super().conditions()
            numb = self.numb_s[0] <= self.now_s() < self.numb_s[1] or self.now_s() >= 10.0
            return Conditions() if numb else conditions

        def _apply(self, knobs):
            super()._apply(knobs)
            if knobs == self.safest:
                self.at_lowest_s = self.now_s()

    device = Numb(hot_above_mhz=10_000.0)
    workload = made.workload(target=None, budget_samples=10**6, evaluate_every=10**5)
    record = train(device, workload, made.plan(), max_temp_c=80.0)
    assert record.ended == "stopped for safety"
    assert "no temperature" in record.reason
    assert 11.9 < device.at_lowest_s < 12.3
    assert device.now_s() == pytest.approx(12.2, abs=0.5)
    assert device.current() == device.combinations()[-1]


@pytest.mark.slow
def test_a_board_that_cannot_be_brought_back_after_a_stop_has_its_record_all_the_same():
    class Gone(Telling):
        def _restore(self, snapshot):
            super()._restore(snapshot)
            raise DeviceError("the agent has gone")

    workload = made.workload(target=None, budget_samples=10**6, evaluate_every=10**5)
    record = train(Gone(hot_above_mhz=0.0), workload, made.plan(batch_size=32, clock_mhz=153.6), max_temp_c=80.0)
    assert record.ended == "stopped for safety"
    assert record.reason.endswith("above the limit of 80 °C; the agent has gone")
    assert record.board_events[-1].kind == "not restored"
    with pytest.raises(DeviceError, match="gone"):
        train(Gone(), made.workload(), made.plan())


@pytest.mark.parametrize("limit", [float("nan"), "80", True])
def test_a_limit_that_is_no_temperature_is_refused(limit):
    with pytest.raises(InputError, match="degrees Celsius"):
        check_limit(Telling(), limit)


def test_a_board_that_does_not_tell_its_temperature_is_refused():
    check_limit(made.nano(), None)
    device = made.nano()
    with pytest.raises(InputError, match="does not report its temperature"):
        train(device, made.workload(), made.plan(), max_temp_c=80.0)
    assert device.now_s() == 0


@pytest.mark.slow
def test_the_board_guards_the_limits_as_well():
    device = Telling()
    train(device, made.workload(), made.plan(cap_w=5.0), max_temp_c=95.0)
    assert device.handed == [(5.0, 95.0, 614.4)]  # inside `at`
    free = Telling()
    train(free, made.workload(), made.plan())
    assert free.handed == []

    class Refusing(Telling):
        def arm_guard(self, limit):
            raise DeviceError("the agent has gone")

    refusing = Refusing()
    with pytest.raises(DeviceError, match="gone"):
        train(refusing, made.workload(), made.plan(cap_w=5.0))
    assert refusing.current() == refusing.combinations()[-1]


@pytest.mark.slow
def test_what_happens_to_the_board_is_in_the_record_in_the_trainings_time():
    device = Telling()
    device.wait(10.0)
    device.throttled_until_s = 13.2
    device.happens = [BoardEvent(time_s=9.0, kind="old", text="x"), BoardEvent(time_s=12.0, kind="clamped", text="y")]
    record = train(device, long(), made.plan(batch_size=32))
    begin_s = 10.0 + device.sensor.settle_s
    at = {event.kind: event.time_s for event in record.board_events}
    assert at["old"] == 0.0
    assert at["clamped"] == pytest.approx(12.0 - begin_s)
    throttled = [event for event in record.board_events if event.kind == "throttled"]
    assert [event.text for event in throttled] == ["held down by gpu-balanced", "runs freely again"]
    assert 13.2 - begin_s <= throttled[1].time_s < 14.6 - begin_s
    assert sum(event.text == "1 new over-current event" for event in record.board_events) == pytest.approx(
        record.time_s / 4, abs=1
    )


def test_a_watch_resumes_from_its_state():
    device = Telling()
    first = BoardMonitor(device)
    device.throttled_until_s = 100.0
    first.look(0.0)
    second = BoardMonitor(device)
    second.load_state_dict(first.state_dict())
    second.look(5.0)
    assert second.events == first.events != ()
    assert second.temperature_max_c >= first.temperature_max_c


def test_a_plan_for_another_mode_is_refused():
    device, workload = made.nano(), made.workload()
    key = profile_key(device, workload, "backprop")
    plan = made.plan(key=key.model_copy(update={"mode": "5W"}))
    with pytest.raises(InputError, match=r"it differs in: mode \(MAXN .*, not 5W\); profile and plan again"):
        train(device, workload, plan, key=key)
