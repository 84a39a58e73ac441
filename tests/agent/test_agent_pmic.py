from pathlib import Path

import pytest
from tests.support.agent_sensors import TimedTree, put, run_programs, script

from wattune_agent.errors import Forbidden, NoReading
from wattune_agent.pmic import PmicSensor, find_pmic, is_raspberry

ANSWER = """\
 3V7_WL_SW_A current(0)=0.10000000A
  VDD_CORE_A current(7)=1.40000000A
 3V7_WL_SW_V volt(8)=3.70000000V
  VDD_CORE_V volt(15)=0.90000000V
     EXT5V_V volt(24)=5.05716000V
      BATT_V volt(25)=0.00000000V"""


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs below a root are those of these tests."""
    run_programs(monkeypatch)


def answering(root: Path, answer: str) -> TimedTree:
    put(root, "/proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    put(root, "/answer", answer + "\n")
    script(root, "vcgencmd", 'case "$1" in pmic_read_adc) cat "$root/answer";; esac')
    return TimedTree(root)


def test_rails_with_current_and_voltage_and_the_board_as_an_estimate(tmp_path: Path) -> None:
    tree = answering(tmp_path, ANSWER)
    sensor, problems = find_pmic(tree)
    assert sensor is not None
    assert problems == []
    assert is_raspberry(tree)
    assert "estimate" in sensor.covers
    reading = sensor.read()
    assert reading.rails_w == pytest.approx({"3V7_WL_SW": 0.37, "VDD_CORE": 1.26})
    assert reading.power_w == pytest.approx(1.1451 * 1.63 + 0.5879)


def test_the_shorter_form_of_some_firmware(tmp_path: Path) -> None:
    sensor, _ = find_pmic(answering(tmp_path, "VDD_CORE_V=0.8750V\nVDD_CORE_A=1.2340A"))
    assert sensor is not None
    assert sensor.read().rails_w == pytest.approx({"VDD_CORE": 0.875 * 1.234})


def test_a_board_without_currents_has_no_sensor(tmp_path: Path) -> None:
    sensor, problems = find_pmic(answering(tmp_path, 'error=1 error_msg="Command not registered"'))
    assert sensor is None
    for part in ("Command not registered", "Raspberry Pi 5", "external:"):
        assert part in problems[0]


def test_without_the_program_it_says_what_would_help(tmp_path: Path) -> None:
    sensor, problems = find_pmic(TimedTree(tmp_path))
    assert sensor is None
    assert "vcgencmd" in problems[0]


def test_no_right_to_ask_names_the_device(tmp_path: Path) -> None:
    sensor, problems = find_pmic(answering(tmp_path, "Can't open device file: /dev/vcio"))
    assert sensor is not None
    assert "/dev/vcio" in problems[0]
    assert "group video" in problems[0]
    with pytest.raises(Forbidden):
        sensor.read()


@pytest.mark.parametrize("answer", ["", "VDD_CORE_A current(7)=1.4A", "VDD_CORE_A=1.2.3A\nVDD_CORE_V=1.0V"])
def test_nonsense_is_no_reading(tmp_path: Path, answer: str) -> None:
    sensor, _ = find_pmic(answering(tmp_path, ANSWER))
    assert sensor is not None
    put(tmp_path, "/answer", answer)
    with pytest.raises(NoReading):
        sensor.read()


def test_an_answer_that_is_no_text_is_no_reading_under_any_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    tree = answering(tmp_path, ANSWER)
    (tmp_path / "answer").write_bytes(b" VDD_CORE_A current(7)=1.4\xff\xfeA\n")
    with pytest.raises(NoReading, match="no rail with current and voltage"):
        PmicSensor(tree).read()


def test_the_recorded_answer_goes_before_any_program(tmp_path: Path) -> None:
    tree = answering(tmp_path, "nonsense")
    put(tmp_path, "/outputs/vcgencmd/pmic_read_adc", ANSWER)
    assert PmicSensor(tree).read().rails_w == pytest.approx({"3V7_WL_SW": 0.37, "VDD_CORE": 1.26})
    put(tmp_path, "/outputs/vcgencmd/pmic_read_adc", "Can't open device file: /dev/vcio")
    with pytest.raises(Forbidden):
        PmicSensor(tree).read()
