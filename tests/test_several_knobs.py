"""A board with two knobs, the GPU's clock and the memory's, from its file to the report."""

import json
import re

import pytest
import torch
from tests.support import training_runs as made
from tests.support.device_examples import make_work

import wattune
from wattune.cap import SensorLimit
from wattune.cli.guarded_device import Pinned
from wattune.devices import Fault, load_board, open_device
from wattune.devices.simulator.board_file import BOARDS
from wattune.errors import InputError
from wattune.point import Knobs
from wattune.power.capped_run import CappedRun
from wattune.records import (
    EfficiencyPoint,
    Plan,
    ProfileTable,
    SampleEfficiency,
    TrainingRecord,
)
from wattune.reporting import RecordSet, summary
from wattune.reporting.page import render
from wattune.reporting.report import compose

CLOCKS, MEMORY = (76.8, 307.2, 921.6), (800.0, 1600.0)
LOW, HIGH = Knobs(clock_mhz=76.8, memory_clock_mhz=800.0), Knobs(clock_mhz=921.6, memory_clock_mhz=1600.0)


def board_text(memory_clocks="[800, 1600]"):
    """The Nano's file with three clocks of the GPU, two of the memory, and a fast, noise-free sensor."""
    text = (BOARDS / "jetson-nano.toml").read_text(encoding="utf-8")
    text = re.sub(r"^clocks_mhz = \[76.8.*$", f"clocks_mhz = {list(CLOCKS)}", text, count=1, flags=re.MULTILINE)
    text = re.sub(r"^voltage_v = .*$", "voltage_v = [0.82, 0.82, 1.04]", text, count=1, flags=re.MULTILINE)
    for name, value in (("resolution_w", 0.0), ("noise_w", 0.0), ("period_s", 0.1), ("window_s", 0.1)):
        text = re.sub(rf"^{name} = \S+", f"{name} = {value}", text, count=1, flags=re.MULTILINE)
    return text.replace("[memory]\n", f"[memory]\nclocks_mhz = {memory_clocks}\n", 1)


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(board_text(), encoding="utf-8")
    return str(path)


@pytest.fixture
def device(spec):
    return open_device(spec)


def curve():
    points = tuple(
        EfficiencyPoint(batch_size=b, relative_samples=r, samples=2048.0 * r) for b, r in ((8, 0.9), (32, 1.0))
    )
    return SampleEfficiency(workload="points", reference_batch_size=32, points=points)


def test_a_board_file_gives_a_second_knob(device):
    assert [(knob.name, knob.values) for knob in device.knobs] == [("clock_mhz", CLOCKS), ("memory_clock_mhz", MEMORY)]
    assert device.current() == HIGH
    assert device.safest == LOW
    work = make_work(gigabytes=5.0)
    steps = device.exact_steps(work)
    for clock in CLOCKS:
        slow, fast = (steps[Knobs(clock_mhz=clock, memory_clock_mhz=memory)] for memory in MEMORY)
        assert fast.step_s < slow.step_s
        assert fast.power_mean_w > slow.power_mean_w


@pytest.mark.parametrize("clocks", ["[1600, 800]", "[800, 800]", "[]", '["fast"]', "[-1, 800]", "1600"])
def test_wrong_clocks_of_the_memory_are_refused_in_one_line(clocks, tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text(board_text(clocks), encoding="utf-8")
    with pytest.raises(InputError, match="memory") as caught:
        load_board(path)
    assert "\n" not in str(caught.value)


def test_boards_without_the_key_are_the_boards_of_before():
    """The digest is part of a profile's key: profiles of earlier versions stay valid."""
    assert open_device("sim:jetson-nano").board.memory.clocks_mhz is None
    assert open_device("sim:jetson-nano").mode == "MAXN 10 W, board file 1dee8fb2"


def test_at_and_the_limiter_restore_both_knobs(device):
    with device.at(Knobs(clock_mhz=307.2, memory_clock_mhz=1600.0)) as setting:
        setting.change(LOW)
        assert device.current() == LOW
    assert device.current() == HIGH
    for wrong in (Knobs(clock_mhz=307.2), HIGH.replace(memory_clock_mhz=1000.0), Knobs(power_limit_w=5.0)):
        with pytest.raises(InputError) as caught, device.at(wrong):
            pytest.fail("it was set")
        assert "\n" not in str(caught.value)
    assert device.current() == HIGH
    work = make_work(gigabytes=1.0)
    with CappedRun(device, SensorLimit(1.0), HIGH) as run:
        run.start()
        settings = []
        for _ in range(40):
            with device.step(work):
                pass
            settings.append(run.limiter.knobs)
        state = json.loads(json.dumps(run.state_dict(), allow_nan=False))
    lowest_first = list(dict.fromkeys(settings))
    assert lowest_first[-1] == LOW
    memory = [knobs["memory_clock_mhz"] for knobs in lowest_first if knobs["clock_mhz"] > CLOCKS[0]]
    assert set(memory) <= {1600.0}  # the memory's clock only falls once the GPU's is at its lowest
    assert device.current() == HIGH
    again = open_device(device.spec)
    with CappedRun(again, SensorLimit(1.0), HIGH) as run:
        run.start(state)
        assert run.limiter.knobs == again.current() == LOW
    assert again.current() == HIGH


@pytest.mark.parametrize("strategy", ["full", "staircase"])
def test_from_profile_to_report(strategy, spec, tmp_path):
    workload, cap_w = made.workload(), 4.0
    table = wattune.profile(spec, workload, cap_w=cap_w, strategy=strategy, reference=False)
    assert {cell.knobs for cell in table.cells} | {probe.knobs for probe in table.aborted} <= set(
        open_device(spec).combinations()
    )
    if strategy == "full":
        assert len(table.cells) + len(table.aborted) == 2 * len(CLOCKS) * len(MEMORY)
    assert {cell.memory_clock_mhz for cell in table.cells} == set(MEMORY)
    plan = wattune.plan(table, curve(), cap_w=cap_w)
    under = [cell for cell in table.measured if cell.power_peak_w <= cap_w]
    best = min(under, key=lambda cell: cell.step_s / cell.batch_size * curve().at(cell.batch_size).relative_samples)
    assert plan.point == best.point
    record = wattune.train(spec, workload, plan)
    assert record.above_cap_s == 0
    assert {(s.clock_mhz, s.memory_clock_mhz) for s in record.trace} == {tuple(plan.knobs.values())}
    for one, kind in ((table, ProfileTable), (plan, Plan), (record, TrainingRecord)):
        assert kind.load(one.save(tmp_path / f"{kind.name}.json")) == one
    assert str(plan.knobs) in summary(plan, record)
    html = render(compose(RecordSet(profile=table, efficiency=curve(), plan=plan, training=record)))
    assert str(plan.knobs) in html
    assert "clock (MHz) / memory clock (MHz)" in html


def test_a_guard_event_has_both_knobs(spec):
    faulty = open_device(spec)
    fault = Fault(kind="power", time_s=1.0, duration_s=0.5, gain=2.0)
    faulty = type(faulty)(faulty.board.model_copy(update={"fault": (fault,)}))
    plan = Plan(batch_size=8, cap_w=5.0, **HIGH)
    record = wattune.train(faulty, made.workload(target=None), plan)
    down = next(event for event in record.guard if event.action == "down")
    assert (down.setting, down.clock_mhz, down.memory_clock_mhz) == (307.2, 307.2, 1600.0)
    assert TrainingRecord.parse(record.dump()) == record


def test_reference_workloads_are_left_out_unless_asked_for(spec):
    table = wattune.profile(spec, made.workload(), cap_w=4.5, strategy="guided")
    assert table.reference is None


def test_what_sets_one_knob_alone_says_what_to_use_instead(device, spec):
    model = torch.nn.Linear(4, 2)
    options = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "batch_size": 8}
    with pytest.raises(InputError, match="give a constant cap") as session:
        wattune.capped(device=device, cap_w=lambda seconds: 4.5, **options)
    with pytest.raises(InputError, match="--strategy full") as guard:
        Pinned(device)
    with pytest.raises(
        InputError,
        match="needs a value for each of its knobs: none for memory_clock_mhz; allowed: memory_clock_mhz 800, 1600",
    ) as train:
        wattune.train(device, made.workload(), Plan(batch_size=8, clock_mhz=307.2))
    assert all("\n" not in str(error.value) for error in (session, guard, train))
