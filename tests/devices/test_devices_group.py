"""A group of devices as one: the contract, and what a group adds to it."""

import json
from contextlib import ExitStack

import pytest
from tests.devices.contract import SEEDS, DeviceContract
from tests.support.device_examples import FileDevice, make_table, make_work, quiet, run_steps

from wattune.devices import Fault, ReplayDevice, SimulatedDevice, builtin_board, open_device
from wattune.devices.group import DeviceGroup, device_group, open_group
from wattune.devices.replay import Noise
from wattune.errors import InputError, OutOfDeviceMemory, SensorError
from wattune.point import Knobs
from wattune.records import Supply

NANO, TX2, ORIN = "sim:jetson-nano", "sim:jetson-tx2-nx", "sim:jetson-orin-nano"


def test_a_state_with_the_levels_of_another_member_is_refused_before_anything_changes():
    """As an earlier version chose them."""
    group = open_group((ORIN, NANO), seed=3)
    state, before = (json.loads(json.dumps(group.state_dict())) for _ in range(2))
    state["members"][0] = None
    state["table"] = [[values[0], values] for _, values in state["table"]]
    with pytest.raises(InputError, match="belongs to another group"):
        group.load_state_dict(state)
    assert json.loads(json.dumps(group.state_dict())) == before
    group.load_state_dict(before)


class TestGroupOfOne(DeviceContract):
    specs: tuple[str, ...] = (NANO,)
    too_large = 4096
    has_ground_truth = True
    is_group = True

    @pytest.fixture
    def device(self, request):
        return open_group(self.specs, seed=SEEDS[request.fixturename])

    another = device


class TestGroupOfDifferentBoards(TestGroupOfOne):
    specs = (NANO, TX2, NANO)


class TestGroupOfTables(DeviceContract):
    too_large = 16
    is_group = True

    @pytest.fixture
    def device(self, request):
        seed = SEEDS[request.fixturename]
        return device_group([ReplayDevice(make_table(), Noise(seed=own)) for own in (seed, seed + 2)])

    another = device

    def test_only_a_replay_has_a_table(self, device):
        assert device.replayed_table is None


def hot(**changes):
    """A board that throttles, leaks, and has faults."""
    board = builtin_board("jetson-nano")
    thermal = board.thermal.model_copy(update={"throttle_c": 36.0, "tau_s": 3.0, "poll_s": 0.3})
    power = board.power.model_copy(update={"leakage_per_degree": 0.012})
    faults = (
        Fault(kind="slowdown", time_s=1.3, duration_s=2.0, gain=1.7),
        Fault(kind="power", time_s=2.2, duration_s=1.0, gain=1.2),
        Fault(kind="reading", time_s=4.0, duration_s=1.0, gain=1.1),
    )
    return board.model_copy(update={"thermal": thermal, "power": power, "fault": faults, **changes})


def use(device):
    """A use with everything that happens to a board; the figures of every instant at which it was looked at."""
    seen = []

    def look():
        seen.append((device.now_s(), device.power_w()))

    def change():
        setting.change(device.combinations()[len(seen) % len(device.combinations())])

    long, short = make_work(8, gflop=70.0), make_work(6)
    short = short.model_copy(update={"micro_batch_size": 2})
    truth = device.ground_truth(4.0, 1.0)
    with ExitStack() as stack:
        setting = stack.enter_context(device.at(device.combinations()[-1]))
        stack.enter_context(device.every(0.07, look))
        stack.enter_context(device.every(0.45, change))
        for _ in range(20):
            run_steps(device, long)
            seen.append((device.now_s(), device.power_w()))
        device.wait(0.777)
        run_steps(device, short, 2)
        seen.append((device.now_s(), device.power_w()))
    return seen, truth.figures()


def test_a_group_of_one_is_the_bare_device_bit_for_bit():
    bare, member = SimulatedDevice(hot(), seed=3), SimulatedDevice(hot(), seed=3)
    seen, exact = use(bare)
    as_group, exact_as_group = use(device_group([member]))
    assert len(seen) > 100
    assert seen == as_group
    assert json.dumps(bare.state_dict()) == json.dumps(member.state_dict())
    assert (exact.energy_j, exact.time_s) == (exact_as_group.energy_j, exact_as_group.time_s)
    assert exact.above_cap_s > 0
    assert exact.above_cap_s == pytest.approx(exact_as_group.above_cap_s, abs=1e-9)


def test_the_slowest_sets_the_pace_and_the_others_wait_at_rest():
    slow, fast = SimulatedDevice(quiet()), SimulatedDevice(quiet(builtin_board("jetson-orin-nano")))
    group, work = device_group([slow, fast]), make_work(8, gflop=20.0)
    own_s = [member.exact_steps(work)[member.current()].step_s for member in (slow, fast)]
    before_j = fast._energy.total_j
    run_steps(group, work)
    assert group.compute_s == pytest.approx(own_s)
    assert group.now_s() == slow.now_s() == fast.now_s() == pytest.approx(max(own_s))
    alone = SimulatedDevice(fast.board)
    run_steps(alone, work)
    alone.wait(own_s[0] - own_s[1])
    assert own_s[1] < 0.5 * own_s[0]
    assert fast._energy.total_j - before_j == pytest.approx(alone._energy.total_j)


def test_a_change_in_the_middle_of_a_step_holds_for_the_rest_of_it():
    group, work = open_group([NANO, NANO]), make_work(8, gflop=70.0)
    low, high = group.combinations()[2], group.combinations()[-1]
    times_s = {knobs: group.members[0].exact_steps(work)[knobs].step_s for knobs in (low, high)}
    at_s = 0.6 * times_s[high]
    with group.at(high) as setting, group.every(at_s, lambda: setting.change(low)), group.step(work):
        pass
    assert group.now_s() == pytest.approx(at_s + 0.4 * times_s[low], rel=0.1)
    assert group.members[0].now_s() == group.members[1].now_s() == group.now_s()


def test_an_error_in_a_call_ends_the_step_of_all_members_at_that_instant():
    group = open_group([NANO, TX2])

    def fail():
        raise KeyError

    with pytest.raises(KeyError), group.every(0.25, fail), group.step(make_work(8, gflop=500.0)):
        pass
    assert [member.now_s() for member in group.members] == [0.25, 0.25]


def test_readings_are_those_of_all_and_a_cap_is_compared_with_the_highest_pool():
    boards = [SimulatedDevice(quiet(), seed=i) for i in range(2)] + [
        SimulatedDevice(quiet(builtin_board("jetson-tx2-nx")))
    ]
    shared, own = device_group(boards), device_group(boards, pools=[0, 1, 2])
    pairs = device_group(boards, pools=[4, 4, 7])
    run_steps(shared, make_work(8), 30)
    watts = [board.power_w() for board in boards]
    for group, guarded_w in ((shared, sum(watts)), (own, max(watts)), (pairs, max(sum(watts[:2]), watts[2]))):
        power_w = group.power_w()
        assert power_w == sum(watts)
        assert group.guarded_w(power_w) == guarded_w
        assert json.loads(json.dumps(power_w)) == sum(watts)
        assert group.guarded_w(5.0) == 5.0  # of a number of elsewhere: cautious


def test_the_ground_truth_is_of_the_highest_pool():
    work = make_work(8, gflop=20.0)
    for pools, above in (([0, 0], True), ([0, 1], False)):
        group = device_group([SimulatedDevice(quiet()) for _ in range(2)], pools=pools)
        truth = group.ground_truth(8.0, 1.0)
        run_steps(group, work, 20)
        figures = truth.figures()
        drawn_w = figures.energy_j / figures.time_s
        assert 8.0 < drawn_w < 16.0
        assert (figures.above_cap_s > 0.5 * figures.time_s) == above
        truth.move_cap(1.0)
        group.wait(1.0)
        assert truth.figures().above_cap_s - figures.above_cap_s == pytest.approx(1.0, abs=0.01)


def test_properties_are_put_together():
    group = open_group([NANO, NANO, TX2])
    nano, tx2 = open_device(NANO), open_device(TX2)
    assert group.name == "2 x sim:jetson-nano + 1 x sim:jetson-tx2-nx"
    assert open_group([NANO] * 4).name == "4 x sim:jetson-nano"
    assert group.memory_bytes == min(nano.memory_bytes, tx2.memory_bytes)
    assert group.data_types == nano.data_types & tx2.data_types
    assert group.sensor.noise_w**2 == pytest.approx(2 * nano.sensor.noise_w**2 + tx2.sensor.noise_w**2)
    for figure in ("period_s", "window_s", "lag_s"):
        assert getattr(group.sensor, figure) == max(getattr(nano.sensor, figure), getattr(tx2.sensor, figure))
    assert open_group([NANO]).sensor == nano.sensor
    own = open_group([NANO, NANO], pools=[0, 1])
    assert own.guarded_sensor.noise_w == nano.sensor.noise_w < own.sensor.noise_w
    assert open_group([NANO, ORIN]).problems == open_device(ORIN).problems


def test_losses_before_the_sensors_are_those_of_a_pool():
    group = open_group([NANO, NANO, NANO], pools=[0, 0, 1])
    assert group.supply is None
    for member in group.members[:2]:
        member.supply = Supply(other_w=1.0, efficiency=0.9)
    assert device_group(group.members).supply is None
    group.members[2].supply = Supply(other_w=0.5, efficiency=0.8)
    assert device_group(group.members, pools=[0, 0, 1]).supply == Supply(other_w=2.0, efficiency=0.8)


def test_seeds_differ_by_rank():
    group = open_group([NANO, NANO], seed=5)
    for rank, member in enumerate(group.members):
        assert member.power_w() == open_device(NANO, seed=5 + rank).power_w()


def test_members_follow_the_slowest_at_equal_times():
    nano, orin = SimulatedDevice(quiet()), SimulatedDevice(quiet(builtin_board("jetson-orin-nano")))
    group, work = device_group([nano, orin]), make_work(8, gflop=20.0)

    def step():
        begin_s, begin_j = group.now_s(), nano._energy.total_j + orin._energy.total_j
        run_steps(group, work)
        return group.now_s() - begin_s, nano._energy.total_j + orin._energy.total_j - begin_j

    with group.at(group.combinations()[-1]):
        assert not group.rebalance()  # nothing was observed
        step_s, energy_j = [step() for _ in range(3)][-1]
        assert group.rebalance()
        assert not group.rebalance()
        assert orin.current() < orin.combinations()[2]
        assert nano.current() == nano.combinations()[-1]
        balanced_s, balanced_j = step()
    assert balanced_s == pytest.approx(step_s)
    assert balanced_j < energy_j
    assert orin.current() == orin.combinations()[-1]


def test_the_levels_are_the_settings_of_the_member_that_has_most_from_the_safest_of_every_member():
    group = open_group([NANO, TX2, ORIN])
    most = max(group.members, key=lambda member: len(member.combinations()))
    assert group.combinations() == most.combinations()
    assert group.member_settings(group.combinations()[-1]) == tuple(m.combinations()[-1] for m in group.members)
    assert group.member_settings(group.safest) == tuple(member.safest for member in group.members)


def test_a_member_that_throttles_is_followed_until_it_is_cool_again():
    board = quiet(hot(fault=()))
    warm, cool = SimulatedDevice(board, seed=1), SimulatedDevice(quiet(), seed=2)
    group, work = device_group([SimulatedDevice(quiet()), warm, cool]), make_work(8, gflop=70.0)
    top = group.combinations()[-1]
    with group.at(top):
        for _ in range(12):
            run_steps(group, work, 5)
            group.rebalance()
        assert warm.effective_mhz < warm.current()["clock_mhz"]
        assert cool.current() < top
        warm.board = board.model_copy(update={"thermal": builtin_board("jetson-nano").thermal})
        for _ in range(12):
            run_steps(group, work, 5)
            group.rebalance()
        assert warm.current() == cool.current() == top


def test_what_does_not_fit_one_member_names_it():
    group = open_group([NANO, TX2])
    work = make_work(8, memory_bytes=(group.members[0].memory_bytes + group.members[1].memory_bytes) / 2)
    with pytest.raises(OutOfDeviceMemory, match=r"rank 1 \(sim:jetson-tx2-nx\): batch size 8"), group.step(work):
        pass
    assert group.now_s() == 0.0


def test_what_cannot_be_one_device_is_refused_in_one_line(tmp_path):
    half = open_device(NANO)
    half.data_types = frozenset({"bf16"})
    cases = [
        (lambda: device_group([open_device(NANO), half]), "no data type in common"),
        (lambda: open_group([]), "at least one"),
        (lambda: open_group([NANO], pools=[0, 1]), "a number for each of the 1 devices"),
        (lambda: open_group([NANO, "sim:jetson-tx2"]), r"rank 1, .* cannot set several knobs"),
        (lambda: device_group([open_device(NANO), FileDevice(tmp_path)]), "all real, or all simulated"),
        (
            lambda: device_group([ReplayDevice(make_table(setting)) for setting in ("clock_mhz", None)]),
            r"rank 1 \(bench-gpu\); allowed: a clock or a power limit on all devices, or on none; run an agent",
        ),
        (lambda: open_group([NANO, "sim:nothing"]), "rank 1, sim:nothing: unknown simulated board"),
    ]
    for make, said in cases:
        with pytest.raises(InputError, match=said) as caught:
            make()
        assert "\n" not in str(caught.value)


def test_a_group_without_knobs_trains_at_what_the_boards_choose():
    group = device_group([ReplayDevice(make_table(None)) for _ in range(2)])
    assert group.knobs == ()
    assert group.current() is None
    assert group.combinations() == (Knobs(),)
    with group.at(None), group.step(make_work(8)):
        pass
    assert not group.rebalance()
    assert len(group.compute_s) == 2


def test_a_dropped_out_sensor_names_its_member():
    dropout = Fault(kind="dropout", time_s=0.5, duration_s=1.0)
    group = device_group([SimulatedDevice(quiet()), SimulatedDevice(quiet(fault=(dropout,)))])
    group.wait(0.6)
    with pytest.raises(SensorError, match=r"rank 1 \(sim:jetson-nano\).*gives no reading"):
        group.power_w()


def test_members_of_different_times_meet_at_the_latest():
    boards = [open_device(NANO), open_device(TX2)]
    boards[1].wait(3.3)
    group = device_group(boards)
    assert isinstance(group, DeviceGroup)
    assert [board.now_s() for board in boards] == [3.3, 3.3]


def test_settings_that_fall_are_set_before_those_that_rise():
    order = []

    class Noting(SimulatedDevice):
        def _apply(self, knobs):
            order.append(self._seed)
            super()._apply(knobs)

    boards = [Noting(quiet(), seed=i) for i in range(2)]
    group = device_group(boards)
    boards[0]._apply(boards[0].safest)
    order.clear()
    with group.at(group.combinations()[4]):
        assert order == [1, 0]
