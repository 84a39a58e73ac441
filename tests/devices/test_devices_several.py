"""The clocks of a Jetson beside its GPU's, as knobs of a device: chosen, set together, left to the board."""

import pytest

pytest.importorskip("torch")

from tests.support import training_runs as made
from tests.support.agent_socket import serving
from tests.support.live.tree import LiveTree
from tests.support.live_board import live

import wattune
from wattune.cap import SensorLimit
from wattune.devices import open_device
from wattune.errors import InputError
from wattune.point import Knobs
from wattune.power.capped_run import CappedRun
from wattune.training import train
from wattune_agent.snapshot import snapshots

NAMES = ["clock_mhz", "memory_clock_mhz", "cpu_clock_mhz"]


@pytest.fixture(params=["orin-nano", "nano"])
def tree(request, tmp_path):
    return LiveTree(tmp_path / "board", request.param)


def names(device):
    return [knob.name for knob in device.knobs]


def middle(device):
    return Knobs({knob.name: knob.values[len(knob.values) // 2] for knob in device.offered})


def test_a_device_offers_all_clocks_and_begins_with_the_first(device):
    assert [knob.name for knob in device.offered] == NAMES
    assert names(device) == NAMES[:1]
    assert list(device.safest) == NAMES[:1]


@pytest.mark.parametrize(
    ("wanted", "knobs"),
    [
        (NAMES, NAMES),
        (["clock_mhz", "cpu_clock_mhz"], ["clock_mhz", "cpu_clock_mhz"]),
        (["memory_clock_mhz"], NAMES[:1]),
        (["clock_mhz", "power_limit_w"], NAMES[:1]),
        ([], NAMES[:1]),
    ],
)
def test_only_offered_knobs_with_the_first_among_them_can_be_selected(wanted, knobs, device):
    device.select(wanted)
    assert names(device) == knobs


def test_all_of_them_are_set_and_restored(tree, device):
    before = tree.state()
    device.select(NAMES)
    with device.at(middle(device)) as setting:
        assert device.current() == middle(device)
        assert tree.board.memory.rate(1.0) == round(1e6 * middle(device)["memory_clock_mhz"])
        assert tree.board.cpus[0].high == round(1e3 * middle(device)["cpu_clock_mhz"])
        setting.change(device.safest)
        assert tree.board.cpus[0].high == tree.board.cpus[0].listed[0]
    assert tree.state() == before
    assert not snapshots(tree)
    device.select(NAMES[:1])
    with device.at(Knobs(clock_mhz=device.knobs[0].values[0])):
        assert tree.read(tree.board.memory.lock_path) == "0"
    assert tree.state() == before


def test_a_limiter_lowers_the_first_clock_first_and_then_the_others(tree, device):
    device.select(NAMES)
    high = Knobs({knob.name: knob.values[-1] for knob in device.knobs})
    before = tree.state()
    tree.board.load = 1.0
    with CappedRun(device, SensorLimit(0.5), high) as run:
        seen = [run.setting.knobs]
        for number in range(200):
            tree.sleep(0.5)
            run.limiter(0.5 * number, device.power_w())
            seen.append(run.setting.knobs)
    assert seen[-1] == device.safest
    lowered = [knobs for knobs in seen if knobs["clock_mhz"] > device.safest["clock_mhz"]]
    assert {knobs["memory_clock_mhz"] for knobs in lowered} == {high["memory_clock_mhz"]}
    assert tree.state() == before


def test_a_task_of_one_knob_takes_the_first(device):
    device.select(NAMES)
    assert device.only_knob("a session", hint="").name == "clock_mhz"
    assert names(device) == NAMES[:1]


def test_training_sets_the_knobs_of_its_plan(tree, device):
    before, knobs = tree.state(), middle(device)
    plan = made.plan(clock_mhz=knobs["clock_mhz"])
    plan = plan.model_copy(update={name: knobs[name] for name in NAMES[1:]})
    record = train(device, made.workload(), plan)
    assert {(s.clock_mhz, s.memory_clock_mhz, s.cpu_clock_mhz) for s in record.trace} <= {tuple(knobs.values())}
    assert names(device) == NAMES
    assert tree.state() == before
    train(device, made.workload(), made.plan(clock_mhz=knobs["clock_mhz"]))
    assert names(device) == NAMES[:1]


# ------------------------------------------------------------------------------------------------------------- by name


@pytest.mark.parametrize(
    ("spec", "knobs"), [("gpu", NAMES[:1]), ("gpu,cpu", [NAMES[0], NAMES[2]]), ("gpu,memory,cpu", NAMES)]
)
def test_knobs_are_chosen_by_their_words(spec, knobs, tree):
    device = open_device(f"jetson?root={tree.root}&knobs={spec}")
    assert names(device) == knobs == [knob.name for knob in device.offered]
    device.close()


@pytest.mark.parametrize("spec", ["memory", "gpu,fan", "gpu,gpu", "clock_mhz"])
def test_knobs_that_cannot_be_chosen(spec, tree):
    with pytest.raises(InputError, match="gpu, and beside it memory, cpu") as caught:
        open_device(f"jetson?root={tree.root}&knobs={spec}")
    assert "\n" not in str(caught.value)


def test_auto_passes_them_on(tree):
    device = open_device(f"auto?root={tree.root}&knobs=gpu,memory")
    assert names(device) == NAMES[:2]
    device.close()


def test_an_agent_sets_them_too(tmp_path):
    root, socket = tmp_path / "board", tmp_path / "agent.sock"
    with live(root, throttled=False), serving(root, socket):
        device = open_device(f"agent:{socket}?knobs=gpu,memory,cpu")
        assert names(device) == NAMES
        with device.at(device.safest):
            lock = root / "sys/kernel/debug/bpmp/debug/clk/emc/mrq_rate_locked"
            assert lock.read_text().strip() == "1"
        device.close()


def test_a_guided_profile_takes_all_that_are_offered(monkeypatch, device):
    """Other strategies would measure every combination."""
    seen = []

    def stop(self, point):
        seen.append(list(point.knobs))
        raise KeyboardInterrupt

    monkeypatch.setattr("wattune.profiling.cell_probe.CellProbe.measure", stop)
    for strategy, knobs in (("staircase", NAMES[:1]), ("guided", NAMES)):
        with pytest.raises(KeyboardInterrupt):
            wattune.profile(device, made.workload(), cap_w=50.0, strategy=strategy, reference=False)
        assert seen.pop() == knobs
