"""Guided profiles: few probes, the right point, nothing above the cap, and what is said of it."""

from __future__ import annotations

import math
import re

import pytest
from tests.support.profiles import board, workload

from wattune.cap import SensorLimit
from wattune.devices import SimulatedDevice, builtin_board
from wattune.devices.replay import Noise, ReplayDevice
from wattune.errors import CapError, DeviceUnavailable, InputError
from wattune.point import BatchShape
from wattune.profiling import profile
from wattune.profiling.guided import MOST, read_rest_w, samples_of
from wattune.records import EfficiencyPoint, ProfileCell, ProfileTable, SampleEfficiency, provenance

SIZES = (4, 8, 16, 32, 64, 128)
RELATIVE = {4: 0.45, 8: 0.46, 16: 0.48, 32: 0.55, 64: 0.7, 128: 1.0}


def curve(relative=RELATIVE, band=1.02) -> SampleEfficiency:
    return SampleEfficiency(
        workload="small",
        reference_batch_size=128,
        points=tuple(
            EfficiencyPoint(batch_size=b, relative_samples=r, low=r and r / band, high=r and r * band)
            for b, r in relative.items()
        ),
    )


def guided(device: SimulatedDevice, cap_w: float, **changes):
    options = {"efficiency": curve(), "reference": False, **changes}
    return profile(device, workload(batch_sizes=SIZES), strategy="guided", limit=SensorLimit(cap_w), **options)


def cost(cell) -> float:
    return cell.step_s / cell.batch_size * RELATIVE[cell.batch_size]


@pytest.mark.slow
@pytest.mark.parametrize("cap_w", [4.1, 4.6, 5.2])
def test_few_probes_find_a_point_near_the_best(cap_w):
    free = profile(board(), workload(batch_sizes=SIZES), reference=False)
    # The noise, and what is not known after so few probes, take one clock at most.
    ideal = min((c for c in free.cells if c.power_peak_w <= cap_w - 0.15), key=cost)
    found = guided(board(noise_w=0.03, seed=3), cap_w)
    steered = found.guided
    assert found.strategy == "guided"
    assert found.cost.probes <= MOST < len(free.cells) / 4
    pick = next(c for c in found.cells if c.point == steered.pick.point)
    assert cost(pick) <= 1.02 * cost(ideal)
    assert pick.power_peak_w <= cap_w
    assert pick.p_above_cap == steered.p_above_cap <= 0.05
    assert (steered.strict, steered.samples_from) == (False, "efficiency")
    assert steered.stopped_because
    # Every probe is in the table: those of one cell as one of its own.
    assert sum(c.probes or 1 for c in found.cells) + len(found.aborted) == found.cost.probes


@pytest.mark.parametrize("seed", range(4))
def test_strict_never_reads_above_the_cap(seed):
    found = guided(board(noise_w=0.04, seed=seed), 4.5, strict=True)
    assert found.aborted == ()
    assert found.cost.above_cap_s == 0
    assert found.guided.strict
    assert all(cell.power_peak_w <= 4.5 for cell in found.cells)


def test_rows_that_need_far_too_many_samples_are_not_climbed():
    hopeless = {**RELATIVE, 4: 40.0, 8: 40.0}
    found = guided(board(noise_w=0.03), 5.0, efficiency=curve(hopeless))
    assert all(c.clock_mhz < 600 for c in found.cells if c.batch_size < 16)
    assert found.guided.pick.batch_size >= 16


def test_batch_sizes_without_samples_are_left_out():
    lost = {**RELATIVE, 32: None}
    del lost[4]
    found = guided(board(), 5.0, efficiency=curve(lost))
    assert {c.batch_size for c in found.cells} <= {8, 16, 64, 128}
    with pytest.raises(InputError, match="for none of the batch sizes"):
        guided(board(), 5.0, efficiency=curve({128: 1.0 / 1.0}).model_copy(update={"points": ()}))


def test_without_a_curve_the_usual_samples_are_taken():
    rows = [BatchShape(b, b) for b in SIZES]
    usual = samples_of(None, rows)
    assert list(usual) == list(SIZES)
    assert usual[32] == (1.0, 0.0)  # where the search begins
    assert usual[128][1] > usual[64][1] > 0
    found = guided(board(), 4.6, efficiency=None)
    assert found.guided.samples_from == "prior"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"strategy": "guided"}, "the strategy guided"),
        ({"strategy": "full", "strict": True}, "strict and efficiency"),
        ({"limit": SensorLimit(5.0), "efficiency": curve()}, "strict and efficiency"),
    ],
)
def test_what_does_not_go_together_is_refused(options, what):
    with pytest.raises(InputError, match=what):
        profile(board(), workload(), reference=False, **options)


def test_a_cap_below_the_board_at_rest_costs_no_probe():
    device = board()
    with pytest.raises(CapError, match="at rest"):
        guided(device, 1.0)
    assert device.now_s() <= device.sensor.settle_s + 1e-9
    assert device.current() == device.combinations()[-1]


def test_one_noisy_reading_at_rest_is_not_the_end():
    cells = tuple(
        ProfileCell(batch_size=8, clock_mhz=mhz, step_s=50 / mhz, power_mean_w=w, power_peak_w=w)
        for mhz, w in ((100, 2.0), (200, 3.0))
    )
    table = ProfileTable(device="b", workload="w", cells=cells, provenance=provenance("recorded", device="b"))
    devices = [ReplayDevice(table, Noise(relative=0.03, period_s=1.0, seed=seed)) for seed in range(20)]
    assert max(read_rest_w(device, 2.08) for device in devices) > 2.08
    with pytest.raises(CapError, match="at rest"):
        read_rest_w(devices[0], 1.6)


def test_a_cap_that_no_training_keeps():
    lowest = profile(board(), workload(batch_sizes=(4,)), limit=SensorLimit(None), reference=False).cells[0]
    with pytest.raises(
        CapError, match=r"no measured point stays under the cap: 3 W; .* batch size 4 at 76.8 MHz"
    ) as caught:
        guided(board(), 3.0)
    told_w = float(re.search(r"above ([\d.]+) W", str(caught.value))[1])
    assert told_w == pytest.approx(lowest.highest_w, rel=0.03)


class Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
def test_an_interrupted_profile_ends_as_if_it_had_not_been(tmp_path, strict):
    path = tmp_path / "partial.json"

    def measure(progress=None):
        return guided(board(noise_w=0.03, seed=1), 4.5, strict=strict, partial=path, progress=progress)

    def kill_after(probes):
        def progress(done, total, what):
            if done >= probes:
                raise Killed

        return progress

    whole = measure()
    path.unlink()
    for probes in (0, 1, 3, 6):
        with pytest.raises(Killed):
            measure(kill_after(probes))
    again = measure()
    assert again.cells == whole.cells
    assert again.aborted == whole.aborted
    assert again.guided == whole.guided
    assert again.cost == whole.cost


def test_other_samples_begin_anew(tmp_path):
    path = tmp_path / "partial.json"
    guided(board(), 4.5, partial=path)
    device = board()
    with pytest.warns(UserWarning, match="differs in samples"):
        guided(device, 4.5, partial=path, efficiency=curve({**RELATIVE, 64: 0.5}))
    assert device.now_s() > 1


# -------------------------------------------------------------------------------------------------------------- abort


class Watched(SimulatedDevice):
    """Notes every reading and every change of its clock."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.heard: list[tuple[float, str, float]] = []

    def power_w(self):
        power_w = super().power_w()
        self.heard.append((self.now_s(), "reading", power_w))
        return power_w

    def _apply(self, knobs):
        super()._apply(knobs)
        self.heard.append((self.now_s(), "clock", knobs))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["full", "staircase"])
def test_the_board_is_at_its_lowest_clock_in_the_middle_of_a_long_step(strategy):
    from wattune.workloads.models import resnet18

    cap_w = 4.6
    device = Watched(builtin_board("jetson-nano"), seed=1)
    large = workload(model=lambda: resnet18(stem="imagenet"), input_shape=(3, 224, 224), batch_sizes=(8, 16))
    found = profile(device, large, limit=SensorLimit(cap_w), strategy=strategy, steps=1, reference=False)
    assert found.aborted
    assert max(c.step_s for c in found.cells) > 1.0
    assert min(c.step_s for c in found.cells) > 0.5
    crossed = 0
    clock, above_s = device.combinations()[-1], None
    for time_s, what, value in device.heard:
        if what == "clock":
            clock, above_s = value, None
        elif value > cap_w and above_s is None and clock != device.combinations()[0]:
            above_s, crossed = time_s, crossed + 1
        assert above_s is None or time_s - above_s <= 0.3
    assert crossed == len(found.aborted)


def test_a_sensor_that_reads_no_number_ends_it_in_one_line():
    class Broken(SimulatedDevice):
        def power_w(self):
            return math.nan if self.now_s() > 3 else super().power_w()

    device = Broken(builtin_board("jetson-nano"))
    with pytest.raises(DeviceUnavailable, match="not a power") as raised:
        guided(device, 4.5)
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)
    assert device.current() == device.combinations()[-1]
