"""A group of real devices: files that stand for boards, and faults of single members."""

import threading
import time
from contextlib import closing

import pytest
from tests.devices.contract import DeviceContract
from tests.support.device_examples import FileDevice, make_work, run_steps

from wattune.cap import SensorLimit
from wattune.devices.group import device_group, open_group
from wattune.devices.group import real as real_group
from wattune.errors import DeviceError, SensorError
from wattune.point import Knobs

LOW, HIGH = Knobs(clock_mhz=100.0), Knobs(clock_mhz=200.0)


def boards(folder, *kinds):
    """A board for each kind, in a folder of its own."""
    made = []
    for rank, kind in enumerate(kinds):
        (folder / str(rank)).mkdir()
        made.append(kind(folder / str(rank)))
    return made


class TestGroupOfFiles(DeviceContract):
    is_group = True

    @pytest.fixture
    def device(self, tmp_path):
        device = device_group(boards(tmp_path, FileDevice, FileDevice))
        yield device
        device.close()

    @pytest.fixture
    def another(self, device):
        return device


class Faulty(FileDevice):
    """A device of which some calls fail, or hang until ``goes_on`` is set."""

    fails: frozenset[str] = frozenset()
    closed = False

    def __init__(self, folder):
        super().__init__(folder)
        self.goes_on = threading.Event()
        self.armed = []

    def _apply(self, knobs):
        if "apply" in self.fails:
            raise DeviceError("cannot be set")
        super()._apply(knobs)

    def _restore(self, snapshot):
        if "restore" in self.fails:
            raise DeviceError("cannot be restored")
        super()._restore(snapshot)

    def power_w(self):
        if "power_w" in self.fails:
            raise SensorError("no reading")
        if "hangs" in self.fails:
            self.goes_on.wait(60)
        return super().power_w()

    def arm_guard(self, limit):
        self.armed.append(limit)

    def close(self):
        self.closed = True
        if "close" in self.fails:
            raise DeviceError("cannot be closed")


@pytest.fixture
def three(tmp_path):
    members = boards(tmp_path, Faulty, Faulty, Faulty)
    yield members
    for member in members:
        member.goes_on.set()


@pytest.fixture
def group(three):
    with closing(device_group(three)) as group:
        yield group


def test_a_failing_member_is_named_and_the_others_are_as_before(group, three):
    three[1].fails = frozenset({"apply"})
    with pytest.raises(DeviceError, match=r"rank 1 \(files\): cannot be set"), group.at(LOW):
        pass
    assert [member.current() for member in three] == [HIGH] * 3
    three[1].fails = frozenset()
    with group.at(HIGH) as setting:
        three[1].fails = frozenset({"apply"})
        with pytest.raises(DeviceError, match="rank 1"):
            setting.change(LOW)
    assert [member.current() for member in three] == [HIGH] * 3


def test_every_member_is_restored_although_some_fail(group, three):
    with (
        pytest.raises(DeviceError, match=r"rank 0 \(files\): cannot be restored; rank 1 \(files\): cannot"),
        group.at(LOW),
    ):
        three[0].fails = three[1].fails = frozenset({"restore"})
    assert [member.current() for member in three] == [LOW, LOW, HIGH]


def test_every_member_is_closed_although_one_fails(three):
    three[0].fails = frozenset({"close"})
    with pytest.raises(DeviceError, match=r"rank 0 \(files\): cannot be closed"):
        device_group(three).close()
    assert [member.closed for member in three] == [True] * 3


def test_a_failing_sensor_is_named(group, three):
    assert group.power_w() == pytest.approx(3 * 4.321)
    three[2].fails = frozenset({"power_w"})
    with pytest.raises(SensorError, match=r"rank 2 \(files\): no reading"):
        group.power_w()
    three[2].fails = frozenset()
    assert group.power_w() == pytest.approx(3 * 4.321)


def test_a_hanging_sensor_is_named_and_not_asked_again(group, three, monkeypatch):
    monkeypatch.setattr(real_group, "ANSWER_WITHIN_S", 0.02)
    before = threading.active_count() + 1  # the one that hangs
    three[1].fails = frozenset({"hangs"})
    for _ in range(5):
        with pytest.raises(SensorError, match=r"rank 1 \(files\): power1_input does not answer"):
            group.power_w()
    assert threading.active_count() == before
    three[1].fails = frozenset()
    three[1].goes_on.set()
    monkeypatch.undo()
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        try:
            assert group.power_w() == pytest.approx(3 * 4.321)
            break
        except SensorError:
            time.sleep(0.01)
    else:
        pytest.fail("it never answers again")


def test_readings_are_taken_at_the_same_time(tmp_path):
    class Slow(FileDevice):
        def power_w(self):
            together.wait(10)  # returns once all members read
            return super().power_w()

    together = threading.Barrier(4)
    group = device_group(boards(tmp_path, *[Slow] * 4))
    assert group.power_w() == pytest.approx(4 * 4.321)
    group.close()


def test_own_computing_times_come_from_outside(group, three):
    with group.at(HIGH):
        for _ in range(3):
            run_steps(group, make_work(8))
            group.computed([1.0, 0.4, 0.99])
        assert group.compute_s == (1.0, 0.4, 0.99)
        assert group.rebalance()
        assert [member.current() for member in three] == [HIGH, LOW, HIGH]
        assert not group.rebalance()
    assert [member.current() for member in three] == [HIGH] * 3


def test_times_of_a_step_in_which_the_setting_changed_are_not_learned_from(group, three):
    with group.at(HIGH) as setting:
        for _ in range(6):
            with group.step(make_work(8)):
                setting.change(LOW)
                setting.change(HIGH)
            group.computed([1.0, 0.1, 1.0])
        assert not group.rebalance()


@pytest.mark.parametrize(
    ("pools", "armed"),
    [
        ([0, 1, 2], [SensorLimit(5.0, max_temp_c=80.0), SensorLimit(5.0)]),
        ([0, 0, 1], [SensorLimit(None, max_temp_c=80.0)]),
    ],
)
def test_members_guard_a_cap_of_their_own_only(three, pools, armed):
    group = device_group(three, pools=pools)
    group.arm_guard(SensorLimit(5.0, max_temp_c=80.0))
    group.arm_guard(SensorLimit(5.0))
    assert [member.armed for member in three] == [armed] * 3
    group.close()


def test_what_was_opened_is_closed_if_a_later_one_cannot_be(monkeypatch, three):
    def opened(spec, *, seed):
        if spec == "missing":
            raise DeviceError("does not answer")
        return three[seed - 4]

    monkeypatch.setattr("wattune.devices.group.opening.open_device", opened)
    with pytest.raises(DeviceError, match="rank 2, missing: does not answer"):
        open_group(["a", "b", "missing"], seed=4)
    assert [member.closed for member in three] == [True, True, False]
