"""Contract of every device: run by a subclass for each implementation, in test_devices_contract.py."""

import itertools
import json
import math
import time
from contextlib import suppress

import pytest
from tests.support.device_examples import make_work

from wattune.cap import SensorLimit
from wattune.devices import Device, Meter
from wattune.errors import DeviceError, InputError, OutOfDeviceMemory, SensorError
from wattune.point import KNOBS, Knobs

SEEDS = {"device": 3, "another": 4}
"""By the name of the fixture, where one function stands behind both."""


class Stop(Exception):
    """Raised inside a device's contexts to leave them."""


class DeviceContract:
    """Subclasses give ``device`` and ``another`` of the same kind; ``too_large`` a batch size that does not fit."""

    batch_size = 8
    too_large: int | None = None
    has_ground_truth = False
    is_replay = False
    has_controller = False
    is_group = False

    @pytest.fixture
    def device(self) -> Device:
        raise NotImplementedError

    @pytest.fixture
    def another(self) -> Device:
        raise NotImplementedError

    def work(self):
        return make_work(self.batch_size)

    def train(self, device, steps=3):
        work = self.work()
        for _ in range(steps):
            with device.step(work):
                if device.executes_steps:
                    time.sleep(0.02)

    def test_says_what_it_is(self, device):
        assert device.name
        assert device.mode
        assert device.kind in ("measured", "simulated", "recorded", "replayed")
        assert device.sensor.rail
        assert device.data_types
        names = [knob.name for knob in device.knobs]
        assert len(names) == len(set(names))
        assert set(names) <= set(KNOBS)

    def test_values_ascend_and_can_be_set(self, device):
        for knob in device.knobs:
            assert list(knob.values) == sorted(set(knob.values)) != []
        settings = device.combinations()
        assert list(settings) == sorted(set(settings))
        assert len(settings) == math.prod(len(knob.values) for knob in device.knobs)
        for knobs in settings if device.knobs else ():
            with device.at(knobs) as setting:
                assert device.current() == setting.knobs == knobs

    def test_a_clock_that_is_reported_is_the_pinned_one(self, device):
        if "clock_mhz" not in [knob.name for knob in device.knobs]:
            return
        for knobs in (device.combinations()[0], device.combinations()[-1]):
            with device.at(knobs):
                self.train(device)
                device.power_w()
                assert device.clock_mhz() in (None, pytest.approx(knobs["clock_mhz"], rel=0.03))

    def test_ladders_lead_from_the_safest_setting_one_value_at_a_time(self, device):
        assert device.ladder(Knobs()) == ()
        for knobs in device.combinations() if device.knobs else ():
            ladder = device.ladder(knobs)
            assert (ladder[0], ladder[-1]) == (device.safest, knobs)
            for low, high in itertools.pairwise(ladder):
                assert sum(low[name] != high[name] for name in low) == 1
        climbs = device.climbs()
        assert sorted(itertools.chain(*climbs)) == list(device.combinations())
        assert climbs[0][0] == device.safest

    def test_at_leaves_the_device_as_it_was_found(self, device):
        before = device.current()
        for knobs in device.combinations() if device.knobs else ():
            with device.at(knobs):
                with device.at(device.safest):
                    assert device.current() == device.safest
                assert device.current() == knobs
            assert device.current() == before
            with pytest.raises(Stop), device.at(knobs):
                raise Stop
            assert device.current() == before
        if device.knobs:  # a whole number is as good as a float
            with device.at(Knobs({k: int(v) if v.is_integer() else v for k, v in device.safest.items()})):
                with device.at(device.combinations()[-1]):
                    pass
                assert device.current() == device.safest
        for nothing in (None, Knobs()):
            with device.at(nothing) as setting:
                assert setting.knobs == Knobs()
                assert device.current() == before

    def test_a_setting_can_change_inside_at(self, device):
        if not device.knobs:
            pytest.skip("no knobs")
        before = device.current()
        with device.at(device.combinations()[0]) as setting:
            setting.change(device.combinations()[-1])
            assert device.current() == setting.knobs == device.combinations()[-1]
            with pytest.raises(InputError):
                setting.change(device.safest.replace(**{device.knobs[0].name: 12345.0}))
            assert device.current() == device.combinations()[-1]
        assert device.current() == before

    def test_a_setting_is_of_no_use_once_it_was_left(self, device):
        if not device.knobs:
            pytest.skip("no knobs")
        before = device.current()
        with device.at(device.combinations()[-1]) as setting:
            pass
        with pytest.raises(DeviceError, match="left"):
            setting.change(device.combinations()[0])
        assert device.current() == before

    def test_an_unknown_setting_is_refused_in_one_line(self, device):
        with pytest.raises(InputError, match="12345") as caught, device.at(Knobs(clock_mhz=12345.0)):
            pass
        assert "\n" not in str(caught.value)

    def test_what_it_says_of_its_board(self, device):
        assert device.trains_on in ("cpu", "gpu")
        assert isinstance(device.shares_memory, bool)
        assert device.problems == ()
        self.train(device)
        with suppress(SensorError):
            device.power_w()
        now = device.conditions()
        assert now.throttled == ()
        assert now.temperature_c is None or 0 < now.temperature_c < 110
        assert isinstance(device.events(), tuple)

    def test_limits_can_be_guarded_inside_at(self, device):
        before = device.current()
        with device.at(device.combinations()[-1]):
            device.arm_guard(SensorLimit(1e4))
            self.train(device)
        assert device.current() == before

    def test_time_passes_with_work_and_never_falls(self, device):
        times_s = [device.now_s()]
        for _ in range(3):
            self.train(device, steps=1)
            times_s.append(device.now_s())
            device.wait(0.01)
            times_s.append(device.now_s())
        assert all(later > earlier for earlier, later in itertools.pairwise(times_s))

    def test_power_is_positive_or_an_error(self, device):
        for _ in range(5):
            with suppress(SensorError):
                assert device.power_w() > 0
            self.train(device, steps=1)

    def test_an_exception_in_a_step_comes_out_and_the_device_goes_on(self, device):
        with pytest.raises(Stop), device.step(self.work()):
            raise Stop
        before_s = device.now_s()
        self.train(device)
        assert device.now_s() > before_s

    def test_a_data_type_that_the_chip_lacks_is_refused(self, device):
        lacking = {"fp32", "tf32", "fp16", "bf16"} - device.data_types
        for data_type in lacking:
            with pytest.raises(InputError, match=data_type), device.step(make_work(8, data_type=data_type)):
                pytest.fail("the step began")

    def test_what_does_not_fit_is_refused_before_anything_is_done(self, device):
        if self.too_large is None:
            pytest.skip("this device runs whatever it is given")
        before_s = device.now_s()
        work = make_work(self.too_large, memory_bytes=1e12)
        with pytest.raises(OutOfDeviceMemory, match=str(self.too_large)), device.step(work):
            pytest.fail("the step began")
        assert device.now_s() == before_s
        self.train(device)

    def test_every_calls_while_inside_only(self, device):
        calls_s = []
        begin_s = device.now_s()
        with device.every(0.02, lambda: calls_s.append(device.now_s())):
            while device.now_s() - begin_s < 0.5:
                self.train(device, steps=1)
        end_s, count = device.now_s(), len(calls_s)
        # On real time the machine may be busy with something else; virtual time does not miss a call.
        least = 0.3 if device.executes_steps else 1.0
        assert least * ((end_s - begin_s) / 0.02 - 1) <= count <= (end_s - begin_s) / 0.02 + 2
        assert calls_s == sorted(calls_s)
        self.train(device)
        assert len(calls_s) == count

    def test_what_is_raised_while_sampling_comes_out(self, device):
        def fail():
            raise Stop

        with pytest.raises(Stop), device.every(0.01, fail):
            self.train(device, steps=10)
        self.train(device)

    def test_the_setting_can_be_changed_while_a_step_is_under_way(self, device):
        if not device.knobs:
            pytest.skip("no knobs")
        before = device.current()
        with (
            device.at(device.combinations()[-1]) as setting,
            device.every(0.01, lambda: setting.change(device.combinations()[0])),
        ):
            self.train(device, steps=3)
            for _ in range(100):
                if device.executes_steps and device.current() != device.combinations()[0]:
                    self.train(device, steps=1)  # a clock of metal takes a while
            assert device.current() == device.combinations()[0]
        assert device.current() == before

    def test_the_meter_measures(self, device):
        self.train(device)
        seen = []
        with Meter(device, rate_hz=50, limit=SensorLimit(0.001), on_reading=lambda t, p: seen.append((t, p))) as meter:
            self.train(device, steps=10)
            running = meter.figures() if seen else None
        figures = meter.figures()
        assert len(seen) == figures.readings == figures.readings_above_cap > 0
        assert 0 < figures.power_mean_w <= figures.power_peak_w == max(power_w for _, power_w in seen)
        assert 0 < figures.above_cap_s <= figures.time_s
        assert 0.5 * figures.power_mean_w < figures.energy_j / figures.time_s < 2 * figures.power_mean_w
        assert running is None or running.readings <= figures.readings

    def test_goes_on_from_its_state_as_if_nothing_had_happened(self, device, another):
        if device.state_dict() is None:
            pytest.skip("nothing to keep")
        self.train(device)
        another.load_state_dict(json.loads(json.dumps(device.state_dict())))
        for _ in range(20):
            assert another.now_s() == device.now_s()
            assert another.current() == device.current()
            assert another.power_w() == device.power_w()
            self.train(device, steps=1)
            self.train(another, steps=1)

    def test_a_state_that_was_taken_stays_as_it_was(self, device):
        if device.state_dict() is None:
            pytest.skip("nothing to keep")
        self.train(device)
        state = device.state_dict()
        then = json.dumps(state)
        self.train(device)
        assert json.dumps(state) == then

    def test_only_a_simulated_device_has_a_ground_truth(self, device):
        truth = device.ground_truth(5.0)
        assert truth is None or device.kind == "simulated"
        assert (truth is not None) == self.has_ground_truth  # a folder of files is simulated too, but has none
        if truth is not None:
            begin_s = device.now_s()
            self.train(device)
            assert truth.figures().time_s == device.now_s() - begin_s
            assert truth.figures().energy_j > 0

    def test_only_a_replay_has_a_table(self, device):
        table = device.replayed_table
        assert self.is_replay == (table is not None) == (device.kind == "replayed")
        if table is not None:
            assert table.device == device.name
            assert table.combinations == device.combinations()

    def test_only_a_simulated_device_knows_its_exact_steps(self, device):
        steps = device.exact_steps(self.work())
        assert (steps != {}) == (self.has_ground_truth and not self.is_group)
        if not steps:
            return
        assert tuple(steps) == device.combinations()
        assert all(0 < step.power_mean_w <= step.power_peak_w * (1 + 1e-9) for step in steps.values())
        assert steps[device.current()].step_s == min(step.step_s for step in steps.values())
        begin_s = device.now_s()
        self.train(device, steps=1)
        assert steps[device.current()].step_s == pytest.approx(device.now_s() - begin_s)

    def test_only_a_group_has_members(self, device):
        assert (device.group is device) == self.is_group
        assert device.guarded_w(3.0) == 3.0
        if not self.is_group:
            assert device.group is None
            return
        assert device.members
        self.train(device)
        if not device.executes_steps:
            assert len(device.compute_s) == len(device.members)
        assert not device.rebalance()

    def test_only_a_board_has_a_controller(self, device):
        assert (device.controller is not None) == self.has_controller
        if device.controller is not None:
            assert device.controller.describe()["name"] == device.name
