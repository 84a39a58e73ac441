"""Board files: those that come with wattune, the example in the docs, and every way of getting one wrong."""

import random
import re
from pathlib import Path

import pytest

from wattune.devices import SimulatedDevice, builtin_board, load_board, open_device
from wattune.devices.simulator.board_file import BOARDS, board_names
from wattune.errors import InputError, UnknownName

DOCS = Path(__file__).parents[2] / "docs" / "board-file.md"
NANO = (BOARDS / "jetson-nano.toml").read_text()


def written(folder: Path, text: str) -> Path:
    path = folder / "board.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", board_names())
def test_the_boards_that_come_along_say_where_each_figure_comes_from(name):
    board = builtin_board(name)
    assert board.name == name
    assert (board.cpu is None) == (name == "jetson-tx2")  # nothing of its CPU as a training processor was recorded
    section, tagged = "", 0
    lines = (BOARDS / f"{name}.toml").read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("["):
            section = line
        elif "=" in line and not line.startswith("#") and section:
            explained = f"{lines[number - 1]} {line}"
            tagged += bool(re.search(r"\[(public|derived|fit|assumed)\]|unverified|reference|half_speed", explained))
            assert "#" in explained, line
    assert tagged > 40


def test_the_example_in_the_docs_is_a_whole_board(tmp_path):
    examples = re.findall(r"^```toml\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    board = load_board(written(tmp_path, max(examples, key=len)))
    assert board.cpu is not None
    assert {fault.kind for fault in board.fault} == {"power", "reading", "slowdown", "dropout"}
    assert SimulatedDevice(board).power_w() > 0


def test_unknown_boards_are_answered_with_the_known_ones():
    with pytest.raises(UnknownName, match="jetson-agx-orin, jetson-nano, jetson-orin-nano, jetson-tx2, jetson-tx2-nx"):
        builtin_board("jetson-nanu")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("efficiency = 0.90", "efficiency = 1.90", ["gpu.efficiency", "1.9", "1 or less"]),
        ("efficiency = 0.90", 'efficiency = "0.9"', ["gpu.efficiency", "0.9", "a number"]),
        ("efficiency = 0.90", "efficiency = nan", ["gpu.efficiency", "nan"]),
        ("efficiency = 0.90", "eficiency = 0.90", ["field gpu", "eficiency", "half_speed_samples"]),
        ("[thermal]", "[heat]", ["heat", "thermal"]),
        ("base_w = 3.60", "base_w = -3.60", ["power.base_w", "-3.6"]),
        ("base_w = 3.60", "base_w = true", ["power.base_w", "a number"]),
        ("base_w = 3.60", "", ["power.base_w", "missing"]),
        ("76.8, 153.6", "153.6, 76.8", ["field gpu", "ascending"]),
        ("voltage_v = [0.82, 0.82", "voltage_v = [0.82", ["field gpu", "one voltage_v per clock: 12"]),
        ("voltage_v = [0.82, 0.82", "voltage_v = [0.92, 0.82", ["field gpu", "does not fall"]),
        ("fp32 = 235.9", "fp64 = 235.9", ["gpu.peak_gflops", "fp32"]),
        ("achieved_gbps = 4.6", "achieved_gbps = 46.0", ["memory", "at most bandwidth_gbps"]),
        ("system_mib = 1200", "system_mib = 3000", ["memory", "below size_mib"]),
        ("throttle_c = 97.0", "throttle_c = 20.0", ["thermal", "above ambient_c"]),
        ("period_s = 0.422", "period_s = 0.0", ["sensor.period_s", "0.001 or more"]),
        ('name = "jetson-nano"', 'name = "jetson:nano"', ["name", "jetson:nano"]),
        ('name = "jetson-nano"', 'name = "jetson-nano', ["not valid TOML"]),
    ],
)
def test_a_wrong_file_is_answered_in_one_line(tmp_path, old, new, said):
    assert old in NANO
    path = written(tmp_path, NANO.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_board(path)
    message = str(caught.value)
    assert "\n" not in message
    assert "board.toml" in message
    for part in said:
        assert part in message


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ('kind = "power"\ntime_s = 1\nduration_s = 2', "a gain"),
        ('kind = "dropout"\ntime_s = 1\nduration_s = 2\ngain = 1.1', "a gain, except"),
        ('kind = "fire"\ntime_s = 1\nduration_s = 2\ngain = 1.1', "'power', 'reading', 'slowdown' or 'dropout'"),
    ],
)
def test_a_wrong_fault_is_answered_in_one_line(tmp_path, fault, said):
    with pytest.raises(InputError, match=r"fault\.0") as caught:
        load_board(written(tmp_path, f"{NANO}\n[[fault]]\n{fault}\n"))
    assert said in str(caught.value)


def test_unreadable_files_are_answered_in_one_line(tmp_path):
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.toml", tmp_path, binary):
        with pytest.raises(InputError) as caught:
            load_board(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(30))
def test_fuzzed_files_load_or_are_refused_in_one_line(tmp_path, seed):
    rng = random.Random(seed)
    text = list(NANO)
    for _ in range(rng.randint(1, 20)):
        place = rng.randrange(len(text))
        text[place : place + rng.randint(0, 9)] = rng.choice(["", "[", '"', "=", "1e999", "\x00", "nan", "é", "\n"])
    path = written(tmp_path, "".join(text))
    try:
        assert SimulatedDevice(load_board(path)).power_w() > 0
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - most of them are refused, some are harmless


def test_a_supply_is_for_caps_and_changes_no_physics(tmp_path):
    plain = builtin_board("jetson-nano")
    text = NANO + "\n[supply]\nother_w = 0.9\nefficiency = 0.88\n"
    (tmp_path / "mine.toml").write_text(text)
    device = open_device(str(tmp_path / "mine.toml"))
    assert load_board(tmp_path / "mine.toml").digest == plain.digest
    assert device.supply.at_supply(4.5) == pytest.approx((4.5 + 0.9) / 0.88)
    assert open_device("sim:jetson-nano").supply is None
    (tmp_path / "mine.toml").write_text(text.replace("0.88", "1.2"))
    with pytest.raises(InputError, match=r"supply\.efficiency"):
        load_board(tmp_path / "mine.toml")


def test_an_edited_board_is_another_board_and_a_fault_is_not():
    board = builtin_board("jetson-nano")
    faster = board.model_copy(update={"host": board.host.model_copy(update={"s_per_operation": 1e-5})})
    assert faster.digest != board.digest
    noisier = board.model_copy(update={"sensor": board.sensor.model_copy(update={"noise_w": 0.5})})
    assert noisier.digest == board.digest


def test_a_board_without_a_cpu_cannot_train_on_it(tmp_path):
    board = builtin_board("jetson-nano").model_copy(update={"cpu": None})
    with pytest.raises(InputError, match=r"\[cpu\]"):
        SimulatedDevice(board, "cpu")
