from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.support.profiles import BATCHES, Computer, board, workload

from wattune.algorithms import open_algorithm
from wattune.cap import PowerCap, SensorLimit
from wattune.devices import SimulatedDevice
from wattune.errors import CapError, InputError, OutOfDeviceMemory, RecordError, SensorError
from wattune.goal import Goal
from wattune.planning import plan
from wattune.point import Knobs
from wattune.profiling import profile, profile_key
from wattune.profiling.cell_probe import ENOUGH_S
from wattune.records import ProfileCell, ProfileTable
from wattune.workloads import reference_workloads


def table(device: SimulatedDevice, **arguments: object) -> ProfileTable:
    return profile(device, workload(), reference=False, **arguments)


def at(profile: ProfileTable, batch_size: int, setting: float | None) -> ProfileCell:
    return next(c for c in profile.cells if (c.batch_size, c.knobs.first) == (batch_size, setting))


def test_the_full_grid_holds_what_the_board_does():
    device = board()
    before = device.current()
    found = table(device, steps=5)
    assert device.current() == before
    assert [(c.batch_size, c.clock_mhz) for c in found.cells] == [
        (b, f) for b in BATCHES for f in device.knobs[0].values
    ]
    window_s = max(device.sensor.window_s, device.sensor.period_s)
    for cell in found.cells:
        assert cell.steps >= 5 or cell.steps * cell.step_s >= ENOUGH_S
        assert cell.steps * cell.step_s >= 3 * window_s
        assert cell.power_peak_w >= cell.power_mean_w > 0
        assert cell.step_std_s < 1e-6 * cell.step_s  # a simulated step always takes the same time
    # One step on a fresh board takes what the cell says.
    fresh, work = board(), open_algorithm("backprop", workload(), 32).work()
    with fresh.at(Knobs(clock_mhz=307.2)):
        begun_s = fresh.now_s()
        with fresh.step(work):
            pass
        assert at(found, 32, 307.2).step_s == pytest.approx(fresh.now_s() - begun_s)
    assert (found.strategy, found.device, found.workload, found.algorithm) == ("full", device.name, "small", "backprop")
    assert (found.provenance.kind, found.sensor_window_s) == ("simulated", device.sensor.window_s)
    assert found.key == profile_key(device, workload(), "backprop")


@pytest.mark.slow
def test_steps_of_many_seconds_are_not_taken_seven_times():
    """One to warm up, and one that is measured, where each takes longer than two seconds."""
    slow = board(memory={"achieved_gbps": 0.02})
    found = table(slow)
    long = [cell for cell in found.cells if cell.step_s >= ENOUGH_S]
    medium = [cell for cell in found.cells if ENOUGH_S / 4 < cell.step_s < ENOUGH_S]
    assert long
    assert medium
    assert {cell.steps for cell in long} == {1}
    for cell in medium:
        assert (cell.steps - 1) * cell.step_s < ENOUGH_S
        assert cell.steps * cell.step_s >= ENOUGH_S or cell.steps == 5
    # Two long steps a probe; warming up and measuring end with the step that is under way after so long.
    assert found.cost.time_s < sum(max(2 * cell.step_s, 4 * ENOUGH_S) for cell in found.cells)


def test_the_cost_is_all_that_the_device_spent():
    device = board()
    truth = device.ground_truth(None)
    found = table(device)
    exact = truth.figures()
    assert found.cost.probes == len(found.cells) == 36
    assert found.cost.time_s == pytest.approx(exact.time_s)
    # Each of the 72 meters misses the changes of power within one delay of the sensor.
    assert found.cost.energy_j == pytest.approx(exact.energy_j, rel=0.02)
    assert found.cost.above_cap_s == 0


@pytest.mark.parametrize("cap_w", [3.9, 4.3, 4.7, 5.2])
def test_the_staircase_agrees_with_the_full_grid_on_a_noise_free_board(cap_w):
    full, stairs = table(board()), table(board(), limit=SensorLimit(cap_w))
    assert stairs.strategy == "staircase"
    assert 0 < len(stairs.cells) <= len(BATCHES) + 12 - 1
    assert len(stairs.aborted) <= len(BATCHES)
    for batch_size in BATCHES:
        kept = [c.clock_mhz for c in full.cells if c.batch_size == batch_size and c.power_peak_w <= cap_w]
        assert max(c.clock_mhz for c in stairs.cells if c.batch_size == batch_size) == max(kept)
    for cell in stairs.cells:
        assert cell.power_peak_w <= cap_w
        twin = at(full, cell.batch_size, cell.clock_mhz)
        assert cell.step_s == pytest.approx(twin.step_s)
        # Readings begin at another moment, and each is one of the sensor's steps off at most.
        assert cell.power_peak_w == pytest.approx(twin.power_peak_w, abs=1.01 * 0.0405)
    assert stairs.cost.time_s < full.cost.time_s
    # Far below the cap, the longest steps of all are left out: those of the largest batch at the lowest clocks.
    lowest = min(c.clock_mhz for c in stairs.cells if c.batch_size == BATCHES[-1])
    assert (lowest > 76.8) == (cap_w == 5.2)


def test_no_probe_of_a_staircase_begins_far_above_the_cap():
    """The smallest batch waits for the host: its power says nothing about the larger ones at higher clocks."""
    (heavy,) = (one for one in reference_workloads() if one.name == "reference-depthwise-cnn")
    asked = {"workload": replace(heavy, batch_sizes=(1, 4, 16, 64)), "reference": False, "limit": SensorLimit(5.5)}
    full, stairs = (profile(board("jetson-tx2-nx"), strategy=one, **asked) for one in ("full", "staircase"))
    free = profile(board("jetson-tx2-nx"), **{**asked, "limit": SensorLimit(None)})
    assert stairs.aborted
    for probe in stairs.aborted:  # by what the board draws there: a probe is stopped while its power still rises
        assert at(free, probe.batch_size, probe.clock_mhz).power_mean_w < 1.2 * 5.5
    highest = [{c.batch_size: c.clock_mhz for c in one.cells} for one in (full, stairs)]
    assert highest[0] == highest[1]


def test_a_probe_ends_at_the_first_reading_above_the_cap():
    found = table(board(), limit=SensorLimit(4.5), strategy="full")
    free = table(board())
    above = {(c.batch_size, c.clock_mhz) for c in free.cells if c.power_peak_w > 4.5}
    assert {(p.batch_size, p.clock_mhz) for p in found.aborted} == above != set()
    assert all(p.power_w > p.cap_w == 4.5 for p in found.aborted)
    assert len(found.cells) + len(above) == len(free.cells)
    assert found.cost.time_s < free.cost.time_s
    # A stopped probe lasts until the sensor has settled and the step is over, not three more windows.
    longest_s = board().sensor.settle_s + 0.1 + max(c.step_s for c in free.cells)
    assert 0 < found.cost.above_cap_s <= len(above) * longest_s


@pytest.mark.slow
def test_what_the_sensor_still_shows_of_the_cell_before_stops_nothing():
    slow = {"window_s": 3.0, "period_s": 1.0, "lag_s": 1.0}
    found, free = table(board(**slow), limit=SensorLimit(4.5), strategy="full"), table(board(**slow))
    # The lowest clock comes after the highest of the batch size before, which is far above the cap.
    for batch_size in BATCHES:
        assert at(found, batch_size, 76.8).power_peak_w == at(free, batch_size, 76.8).power_peak_w < 4.5
    assert {(c.batch_size, c.clock_mhz) for c in found.cells} == {
        (c.batch_size, c.clock_mhz) for c in free.cells if c.power_peak_w <= 4.5
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_with_noise_the_highest_clock_is_within_one_step(seed):
    cap_w, clocks = 4.7, board().knobs[0].values
    free = table(board())
    for strategy in ("full", "staircase"):
        noisy = table(board(seed=seed, noise_w=0.03), limit=SensorLimit(cap_w), strategy=strategy)
        for batch_size in BATCHES:
            exact = max(c.clock_mhz for c in free.cells if c.batch_size == batch_size and c.power_peak_w <= cap_w)
            found = max(c.clock_mhz for c in noisy.cells if c.batch_size == batch_size)
            assert abs(clocks.index(found) - clocks.index(exact)) <= 1
        # Three readings that the sensor rounds to the same value are possible, but not everywhere.
        assert sum(c.power_std_w > 0 for c in noisy.cells) > len(noisy.cells) / 2


@pytest.mark.slow
def test_batch_sizes_that_do_not_fit_are_marked_once():
    needed = [open_algorithm("backprop", workload(), b).work().peak_memory_bytes for b in BATCHES]
    made = board().board.memory
    between_mib = (needed[1] + needed[2]) / 2 / 2**20
    memory = {"size_mib": made.system_mib + made.context_mib + between_mib}
    for cap_w in (None, 4.5):
        found = table(board(memory=memory), limit=SensorLimit(cap_w))
        assert [c.batch_size for c in found.cells if c.out_of_memory] == [128]
        assert found.batch_sizes == (8, 32)
    with pytest.raises(OutOfDeviceMemory, match="not even 8"):
        table(board(memory={"size_mib": made.system_mib + made.context_mib + 0.01}))


def test_micro_batches_are_rows_of_their_own():
    found = profile(board(), workload(batch_sizes=(8, 32), micro_batch_sizes=(4, 32)), reference=False)
    rows = {(c.batch_size, c.micro_batch_size) for c in found.cells}
    assert rows == {(8, 4), (32, 4), (32, None)}
    # More passes launch more operations, which takes longer.
    times = {c.micro_batch_size: c.step_s for c in found.cells if (c.batch_size, c.clock_mhz) == (32, 921.6)}
    assert times[4] > times[None]


def test_a_computer_without_a_clock_trains_for_real():
    device = Computer()
    found = profile(device, workload(batch_sizes=(2, 4), budget_samples=4), steps=3)
    assert [(c.batch_size, c.knobs) for c in found.cells] == [(2, Knobs()), (4, Knobs())]
    assert all(c.power_peak_w == c.power_mean_w == 7.0 for c in found.cells)
    assert all(c.step_std_s > 0 for c in found.cells)
    assert device.steps > sum(c.steps for c in found.cells)  # and the warm-ups
    assert found.reference is None
    assert found.provenance.kind == "measured"


def test_a_computer_that_runs_out_of_memory_says_so():
    class Small(Computer):
        def step(self, work):
            if work.samples > 2:
                raise OutOfDeviceMemory("full")
            return super().step(work)

    found = profile(Small(), workload(batch_sizes=(2, 4), budget_samples=4))
    assert [(c.batch_size, c.out_of_memory) for c in found.cells] == [(2, False), (4, True)]


def test_a_sensor_that_fails_is_an_error():
    class Blind(Computer):
        def power_w(self):
            raise SensorError("no reading")

    with pytest.raises(SensorError):
        profile(Blind(), workload())


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"strategy": "spiral"}, "full, staircase"),
        ({"strategy": "staircase"}, "only with a cap"),
        ({"steps": 0}, "steps"),
        ({"algorithm": "magic"}, "backprop"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments, what):
    device = board()
    with pytest.raises(InputError, match=what):
        table(device, **arguments)
    assert device.now_s() == 0


def test_a_data_type_that_the_chip_lacks_is_refused():
    with pytest.raises(InputError, match="bf16"):
        profile(board(), workload(data_type="bf16"), reference=False)


def test_the_key_is_structure_and_not_weights_or_data():
    device = board()
    key = profile_key(device, workload(), "backprop")
    assert key == profile_key(device, workload(data=lambda: None, name="other", target=0.5), "backprop")
    assert key.differences(profile_key(device, workload(data_type="fp16"), "backprop"))
    assert key.differences(profile_key(device, workload(input_shape=(3, 16, 16)), "backprop"))
    assert key.differences(profile_key(board("jetson-tx2-nx"), workload(), "backprop"))
    assert key.input_shape == "3x32x32"
    assert key.software.startswith("torch ")


def test_progress_ends_at_its_total():
    heard: list[tuple[int, int, str]] = []
    for cap_w in (None, 4.3):
        heard.clear()
        result = table(board(), limit=SensorLimit(cap_w), progress=lambda *now: heard.append(now))
        done = [now[0] for now in heard]
        assert done == sorted(done)
        # Of the probes that a staircase might take, it says how many it took in the end.
        took = len(result.cells) + len(result.aborted)
        assert heard[-1] == (took, took, "done")
        (most,) = {now[1] for now in heard[:-1]}
        assert most == took if cap_w is None else most > took
    assert heard[0][2] == f"small, batch size 32 at 76.8 MHz ({most} probes at most)"


def test_progress_goes_on_with_the_references():
    heard: list[tuple[int, int, str]] = []
    limit = SensorLimit(4.3, window_s=1.0)
    found = profile(board(), workload(batch_sizes=(8,)), limit=limit, progress=lambda *now: heard.append(now))
    own, others = found.cost.probes, found.reference.cost.probes
    assert [done for done, *_ in heard[-others - 1 :]] == [*range(own, own + others + 1)]
    (most,) = {total for _, total, _ in heard[:-1]}
    assert most > own + others == heard[-1][1]


def test_a_foreign_file_in_the_place_of_partial_results_is_refused(tmp_path):
    path = tmp_path / "partial.json"
    path.write_text("{")
    with pytest.raises(RecordError):
        table(board(), partial=path)
    assert path.read_text() == "{"


@pytest.mark.parametrize("cap_w", [2.0, 3.0])
def test_a_cap_below_all_power_is_answered_with_the_least_power_of_the_board(cap_w):
    """A stopped probe has only seen the power rise, so that one after the other would name a higher minimum."""
    device, limit = board(), SensorLimit(cap_w, window_s=1.0)
    found = profile(device, workload(), limit=limit, strategy="staircase")
    assert {probe.batch_size for probe in found.aborted} == set(BATCHES)
    assert [cell.batch_size for cell in found.cells] == [8]
    free = table(board(), limit=SensorLimit(None, window_s=1.0))
    least_w = at(free, 8, device.knobs[0].values[0]).power_window_w
    assert found.cells[0].power_window_w == pytest.approx(least_w, rel=0.02)
    assert found.reference is None  # no rule has a setting under this cap either
    assert found.cost.above_cap_s > 1.0  # that probe's, too
    with pytest.raises(CapError, match=r"lowest measured mean over 1 s is (\d\.\d+) W") as caught:
        plan(found, cap=PowerCap(cap_w), batch_size=8)
    assert float(re.search(r"is (\d\.\d+) W", str(caught.value))[1]) == pytest.approx(least_w, rel=0.05)


def test_a_full_profile_for_a_goal_that_counts_the_rest_reads_it():
    device = board()
    found = table(device, strategy="full", goal=Goal("energy-above-rest"))
    assert 0 < found.rest_w < min(cell.power_mean_w for cell in found.cells)
    assert table(board(), strategy="full").rest_w is None
