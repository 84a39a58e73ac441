"""The board during a session: below its cap, as it was found afterwards, and every joule accounted for."""

import sys

import pytest
import torch
from tests.support import sessions
from tests.support.real_time_device import RealTimeDevice
from tests.support.sessions import Late, Numbered, OwnTimeDevice, Tour, board, convolutional, perceptron, pictures
from torch.utils.data import DataLoader

from wattune.algorithms.counting.step_counting import step_work
from wattune.devices import Fault, Knob, Sensor, SimulatedDevice, builtin_board
from wattune.errors import OutOfDeviceMemory, SafetyStop
from wattune.goal import TIME, Goal
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.records import SessionRecord, Supply
from wattune.search.observation import Stretch
from wattune.search.policy import SESSION
from wattune.search.search import Search
from wattune.search.staged import StagedSearch


def trained(device, *, passes=8, model=None, **options):
    model = model or convolutional()
    options = {"loader": DataLoader(pictures(), batch_size=32, shuffle=True), **options}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return sessions.trained(model, device=device, optimizer=optimizer, passes=passes, **options)


def evaluate(session, data=None):
    with session.evaluation(), torch.no_grad():
        for x in data or pictures().tensors[0].split(256):
            session.run.model(x)


@pytest.mark.slow
@pytest.mark.parametrize("cap_w", [4.1, 5.0])
@pytest.mark.parametrize("keep", [True, False])
def test_the_cap_is_never_read_above(cap_w, keep):
    device = SimulatedDevice(builtin_board("jetson-nano"), seed=round(10 * cap_w))
    clock_mhz = device.current()
    record = trained(device, cap_w=cap_w, passes=6, keep_recipe=keep, on_pass=evaluate).record
    assert record.readings_above_cap == 0
    assert record.above_cap_s == 0
    assert record.exact.above_cap_s == 0
    assert record.power_peak_w <= cap_w
    assert record.exact.energy_j == pytest.approx(record.energy_j, rel=0.02)
    assert all(cell.steps >= 3 and cell.power_peak_w >= cell.power_mean_w for cell in record.table.cells)
    assert device.current() == clock_mhz
    assert record.provenance.kind == "simulated"


class ThreeClocks(OwnTimeDevice):
    """A board whose memory and CPU decide as much as its GPU: a cap leaves no room for all of them."""

    knobs = (
        Knob("clock_mhz", (200.0, 400.0, 600.0, 800.0)),
        Knob("memory_clock_mhz", (400.0, 800.0, 1600.0)),
        Knob("cpu_clock_mhz", (500.0, 1000.0, 2000.0)),
    )

    def __init__(self):
        super().__init__()
        self.now = Knobs(clock_mhz=800.0, memory_clock_mhz=1600.0, cpu_clock_mhz=2000.0)

    def shares(self, knobs):
        return [knobs[knob.name] / knob.values[-1] for knob in self.knobs]

    def seconds(self, knobs):
        gpu, memory, cpu = self.shares(knobs)
        return 0.008 / gpu + 0.02 / memory + 0.004 / cpu

    def watts(self, knobs):
        gpu, memory, cpu = self.shares(knobs)
        return 1.5 + 4 * gpu**2 + 0.5 * memory + 3 * cpu**2

    @property
    def step_s(self):
        return self.seconds(self.now)

    def power_w(self):
        return self.watts(self.now)

    def current(self):
        return self.now

    def _apply(self, knobs):
        self.now = knobs

    def _snapshot(self):
        return self.now

    def _restore(self, snapshot):
        self.now = snapshot


def test_all_clocks_of_a_board_are_chosen_under_a_cap():
    device, cap_w = ThreeClocks(), 5.5
    found = device.current()
    record = trained(device, cap_w=cap_w, passes=6, model=perceptron(), loader=DataLoader(Numbered(), 4)).record
    best_s = min(device.seconds(knobs) for knobs in device.combinations() if device.watts(knobs) <= cap_w)
    gpu_alone_s = min(
        device.seconds(knobs)
        for knobs in device.climbs()[-1]  # the other clocks as they were found
        if device.watts(knobs) <= cap_w or knobs == device.climbs()[-1][0]
    )
    assert device.seconds(record.point.knobs) <= 1.05 * best_s < 0.9 * gpu_alone_s
    assert device.watts(record.point.knobs) <= cap_w
    assert device.current() == found


def test_where_the_best_clocks_turn_out_above_the_cap_others_that_were_measured_are_chosen():
    device, cap_w, rows = ThreeClocks(), 5.0, [BatchShape(4, 4), BatchShape(4, 2)]

    def search_of(rows, settings):
        return Search(rows, settings, cap_w=cap_w, start=BatchShape(4, 4), manner=SESSION, **device.sensor.searched)

    def finish():
        while (point := search.next()) is not None:
            taken_s[point] = device.seconds(point.knobs) * (1.5 if point.shape.micro == 2 else 1.0)
            watts = device.watts(point.knobs)
            search.tell(point, Stretch(taken_s[point], watts, watts, 10.0))

    search, taken_s = StagedSearch(search_of, rows, device.combinations(), rows[0]), {}
    finish()
    first = search.best()
    assert search.state_dict()["rows_at"] == dict(first.knobs)
    again = StagedSearch(search_of, rows, device.combinations(), rows[0])
    again.load_state_dict(search.state_dict())
    for one in (search, again):
        one.above(first, cap_w + 0.1)
        kept = [point for point in taken_s if device.watts(point.knobs) <= cap_w and point != first]
        assert one.best() == min(kept, key=taken_s.get)


@pytest.mark.slow
def test_without_a_cap_the_fastest_is_found_and_with_one_the_fastest_that_keeps_it():
    """What is trained at in the end is within 5 % of the best that a table of every cell would have chosen."""
    full = trained(board(), cap_w=None, passes=10, keep_recipe=True).record
    assert full.cap_w is None
    assert full.point.clock_mhz == 921.6
    session = trained(board(), passes=15, keep_recipe=True)
    record = session.record
    chosen = next(cell for cell in record.table.cells if cell.point == record.point.point)
    fastest = min(cell.step_s for cell in full.table.cells)
    assert chosen.power_peak_w <= 4.5
    assert fastest < chosen.step_s < 3 * fastest
    assert "chosen from" in session.explain()
    own = next(cell for cell in record.table.cells if cell.point == record.own_point.point)
    assert (own.shape, record.gain_from) == (BatchShape(32, 32), "measured")
    own_s = record.time_s - record.compute_s + record.samples / 32 * own.step_s
    assert record.gain == pytest.approx(own_s / record.time_s, rel=0.05)
    assert session.explain().startswith(f"{record.gain:.2f} times as fast as your own recipe under a cap of 4.5 W")


@pytest.mark.slow
def test_a_session_for_energy_takes_less_of_it_than_one_for_time():
    """On a board that draws next to nothing at rest, so that a lower clock and voltage save energy."""
    power = builtin_board("jetson-nano").power.model_copy(update={"base_w": 0.2, "idle_w": 0.1})
    records = [trained(board(power=power), cap_w=None, passes=15, goal=goal).record for goal in ("energy", "time")]
    least, fast = records
    assert (least.goal, fast.goal) == (Goal("energy"), TIME)
    energy_j = {one.point: one.step_s * one.power_mean_w for one in (*fast.table.cells, *least.table.cells)}
    assert energy_j[least.point.point] < 0.95 * energy_j[fast.point.point]
    assert least.point.clock_mhz < fast.point.clock_mhz


@pytest.mark.slow
@pytest.mark.parametrize("every", [40, 10, 1])
def test_however_often_it_evaluates_points_are_measured(every):
    """Also where the sensor never shows training alone; then that is said."""

    def count(session):
        nonlocal steps
        steps += 1
        if steps % every == 0:
            evaluate(session, x)

    steps, x = 0, [torch.randn(64, 3, 32, 32)]
    record = trained(board(), passes=12, keep_recipe=True, on_batch=count).record
    assert len(record.table.cells) >= 4
    assert record.changes[-1].point.clock_mhz > board().knobs[0].values[0]
    # In turns of a few milliseconds nobody can tell which of the two drew what: a crossing is answered, not foreseen.
    assert record.readings_above_cap <= (0 if every > 1 else 3)
    said = [note for note in record.notes if "with the evaluations in between" in note]
    assert bool(said) == (every < 40)


@pytest.mark.slow
def test_an_evaluation_of_large_batches_climbs_from_below():
    device = SimulatedDevice(builtin_board("jetson-nano"), seed=4)
    clocks, data = [], pictures().tensors[0]

    def climb(session):
        begun_s = device.now_s()
        with session.evaluation(), torch.no_grad():
            clocks.append(device.current())
            for _ in range(3):
                session.run.model(data)
        assert device.now_s() > begun_s

    record = trained(device, keep_recipe=True, on_pass=climb).record
    assert clocks[0] == device.combinations()[0]
    assert clocks[-1] > clocks[0]
    assert record.readings_above_cap == 0


@pytest.mark.slow
def test_a_spike_is_answered_by_the_guard_and_the_point_comes_back():
    fault = Fault(kind="power", time_s=12.0, duration_s=0.5, gain=1.3)
    device = board(fault=(fault,))
    record = trained(device, passes=24, keep_recipe=True).record
    assert record.readings_above_cap > 0
    assert [event.action for event in record.guard][:1] == ["down"]
    assert "up" in [event.action for event in record.guard]
    assert record.ended == "finished"


@pytest.mark.slow
def test_a_cap_that_cannot_be_kept_stops_for_safety(tmp_path):
    with pytest.raises(SafetyStop, match="at the lowest setting, above the cap of 2 W"):
        trained(board(), cap_w=2.0, passes=100, record=tmp_path / "s.json", checkpoint=tmp_path / "s.safetensors")
    record = SessionRecord.load(tmp_path / "s.json")
    assert record.ended == "stopped for safety"
    assert "above the cap" in record.reason
    assert (tmp_path / "s.safetensors").exists()


@pytest.mark.slow
def test_a_cap_at_the_supply_is_held_at_the_module():
    device = board()
    device.supply = Supply(other_w=1.0, efficiency=0.9)
    record = trained(device, cap_w="6W@supply", passes=4).record
    assert record.cap_w == pytest.approx(4.4)
    assert record.supply_cap_w == 6.0
    assert record.readings_above_cap == 0


@pytest.mark.slow
def test_a_probe_above_the_cap_ends_at_the_lowest_clock_and_its_step_counts(monkeypatch):
    """A search that asks for the highest clock at once, whatever the board draws there."""

    class Rash(Tour):
        def __init__(self, rows, settings, **options):
            super().__init__(rows, settings, **options)
            first, *_ = self.places
            self.places = [first, OperatingPoint(first.shape, max(settings)), first]

    monkeypatch.setattr(sys.modules["wattune.loop.session_run"], "Search", Rash)
    seen = []
    record = trained(board(), passes=8, on_batch=lambda session: seen.append(session.point.knobs["clock_mhz"])).record
    assert record.samples == 8 * 2048
    assert record.table.aborted[0].clock_mhz == 921.6
    assert record.table.aborted[0].power_w > 4.5
    assert record.readings_above_cap <= 1  # the probe ends before the mean over a second is above the cap
    assert record.exact.above_cap_s == 0
    assert any("above the cap" in change.why for change in record.changes)
    assert record.point.clock_mhz == 76.8
    assert record.guard[0].setting == 76.8


@pytest.mark.slow
def test_the_step_is_that_of_the_counted_work(touring):
    """A step of a session takes a simulated board as long as the same step takes it when it is profiled."""
    data = pictures()

    class Trainable:
        data_type = "fp32"
        host_s_per_sample = 0.0

        def loss(self, outputs, y):
            return torch.nn.functional.cross_entropy(outputs, y)

        def example(self, samples):
            return data.tensors[0][:samples], data.tensors[1][:samples]

    model = convolutional()
    work = step_work(Trainable(), model, torch.optim.AdamW(model.parameters()), 32, 8)
    device = board()
    with device.at(Knobs(clock_mhz=76.8)):
        begun_s = device.now_s()
        with device.step(work):
            pass
        step_s = device.now_s() - begun_s
    record = trained(board(), passes=3, keep_recipe=True, micro_batch_size=8).record
    cell = next(cell for cell in record.table.cells if cell.micro_batch_size == 8)
    assert cell.step_s == pytest.approx(step_s, rel=0.05)


@pytest.mark.slow
def test_what_does_not_fit_is_left_out(touring):
    small = builtin_board("jetson-nano")
    memory = small.memory.model_copy(update={"size_mib": 2450 + 6})
    device = board(memory=memory)
    record = trained(device, passes=10).record
    assert any("micro-batches of 256 are left out" in note and "does not fit" in note for note in record.notes)
    assert max(cell.micro_batch_size or cell.batch_size for cell in record.table.cells) < 256


@pytest.mark.slow
def test_where_the_users_own_batch_does_not_fit_it_says_what_to_do():
    class Large(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = perceptron()

        def forward(self, x):
            if len(x) > 8:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return self.inner(x)

    loader = DataLoader(Numbered(), batch_size=32)
    with pytest.raises(OutOfDeviceMemory, match=r"32 samples.*micro_batch_size=\.\.\.\) a size that fits"):
        trained(board(), model=Large(), loader=loader)
    record = trained(board(), model=Large(), loader=loader, micro_batch_size=8, passes=20, keep_recipe=True).record
    assert max(cell.micro_batch_size for cell in record.table.cells) == 8


def test_waiting_for_the_loader_is_measured():
    device = OwnTimeDevice()
    loader = DataLoader(Late(device, device.step_s / 32), batch_size=32)
    record = trained(device, model=perceptron(), loader=loader, passes=2, keep_recipe=True).record
    assert record.compute_s == pytest.approx(40 * OwnTimeDevice.step_s)
    assert record.waiting_s == pytest.approx(record.compute_s)
    assert record.provenance.kind == "measured"


@pytest.mark.slow
def test_on_real_time_power_above_the_cap_ends_the_probe():
    device = RealTimeDevice(lambda clock_mhz: clock_mhz / 50)  # 2 and 4 W
    device.sensor = Sensor(rail="made up", window_s=0.01)  # without a lag: no reading is of the point before
    record = trained(
        device,
        cap_w=3.0,
        model=perceptron(),
        loader=DataLoader(Numbered(), batch_size=32),
        passes=300,
        keep_recipe=True,
    ).record
    assert record.point.clock_mhz == 100.0
    assert record.guard
    assert record.readings_above_cap <= len(record.guard)  # one that came early is answered, and probed again
    assert device.clock_mhz == 150.0
