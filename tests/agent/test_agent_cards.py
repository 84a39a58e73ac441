"""GPUs of AMD and Intel, on files made from the kernel's documentation and drivers that answer as its sources say."""

import pytest
from tests.support.agent_cards import BASE, FREQ0, LEVEL, SCLK, STEMS, made_card
from tests.support.agent_trees import MadeTree, link, put, texts
from tests.support.virtual_time import VirtualProgram, VirtualTime

from wattune.devices import known_devices, open_device
from wattune_agent.conditions import conditions
from wattune_agent.controller import Controller
from wattune_agent.discovery import families, find_board
from wattune_agent.drm import UNTRIED
from wattune_agent.errors import BadRequest, FileFailed, Forbidden, NoReading, NotRestored, NotThere
from wattune_agent.guarded import guard_program
from wattune_agent.leftover import restore_left_behind
from wattune_agent.snapshot import Snapshot, snapshots


@pytest.fixture(params=STEMS)
def card(request, tmp_path):
    return made_card(tmp_path / "card", request.param)


def found(tree):
    (family,) = families(tree)
    return find_board(tree, family)


def test_every_clock_is_reached_and_the_card_is_as_it_was(card):
    before = texts(card.root)
    with Controller(found(card)) as controller:
        settings = controller.describe()["settings_mhz"]
        for mhz in (*settings, settings[0], settings[-1]):
            controller.pin(mhz)
            assert card.clock_mhz() == mhz
            card.sleep(1.0)
            assert controller.check() == []
            reading = controller.read()
            assert reading["clock_mhz"] == mhz
            assert reading["power_w"] == pytest.approx(20.0 + 0.1 * mhz, rel=1e-3)
    assert texts(card.root) == before
    assert card.clock_mhz() == settings[-1]
    assert snapshots(card) == []


def test_an_idle_card_is_pinned_as_well(card):
    card.busy = False
    before = texts(card.root)
    with Controller(found(card)) as controller:
        for mhz in controller.describe()["settings_mhz"]:
            controller.pin(mhz)
            assert controller.check() == []
    assert texts(card.root) == before


def test_a_cap_is_kept_by_lowering_the_clock(card):
    before = texts(card.root)
    controller = Controller(found(card))
    low_mhz, *_, high_mhz = controller.describe()["settings_mhz"]
    cap_w = 20.0 + 0.1 * (low_mhz + high_mhz) / 2
    report = guard_program(controller, VirtualProgram(VirtualTime(card.sleep), 20.0), cap_w=cap_w)
    assert report.exit_code == 0
    assert report.power_peak_w > cap_w
    assert report.above_cap_s < 3.0
    assert not [event for event in report.events if event["kind"] == "stopped for safety"]
    assert texts(card.root) == before


def test_another_program_that_takes_the_clock_is_answered(card):
    other = (FREQ0 + "/max_freq", "1200") if "xe" in (card.read(BASE + "/uevent")) else (LEVEL, "auto")
    before = texts(card.root)
    with Controller(found(card)) as controller:
        low_mhz = controller.describe()["settings_mhz"][0]
        controller.pin(low_mhz)
        card.write(*other)
        card.sleep(1.0)
        assert [event["kind"] for event in controller.check()] == ["another writer"]
        assert card.clock_mhz() == low_mhz
    assert texts(card.root) == before


def test_what_a_killed_process_left_is_restored(card):
    before = texts(card.root)
    controller = Controller(found(card))
    controller.pin(controller.describe()["settings_mhz"][0])
    (path,) = snapshots(card)
    Snapshot.load(path)._replace(pid=0).save()
    controller._let_go()
    assert restore_left_behind(card)
    assert texts(card.root) == before
    assert card.clock_mhz() == controller.board.clock.settings_mhz[-1]


def test_a_permission_that_is_missing_changes_nothing(card):
    before = texts(card.root)
    card.writable = lambda path: not path.endswith(("pp_dpm_sclk", "max_freq"))

    def refuse(path, text):
        if not card.writable(path):
            raise Forbidden(path)

    card.before_write = refuse
    with Controller(found(card)) as controller, pytest.raises(Forbidden):
        controller.pin(controller.board.clock.settings_mhz[0])
    assert texts(card.root) == before


def test_a_file_that_is_gone_while_pinned_is_reported_and_restored_later(card):
    before = texts(card.root)
    controller = Controller(found(card))
    controller.pin(controller.board.clock.settings_mhz[0])

    def fail(path, text):
        raise FileFailed(path + " cannot be written: No such device")

    card.before_write = fail
    with pytest.raises(NotRestored, match="No such device"):
        controller.close()
    card.before_write = lambda path, text: None
    assert restore_left_behind(card)
    assert texts(card.root) == before


def test_it_says_that_no_card_was_ever_tried_and_is_not_the_default(card, tmp_path):
    assert found(card).problems == [UNTRIED]
    put(card.root, "/sys/devices/system/cpu/online", "0-3\n")
    assert families(card)[0] == "cpu"
    (device,) = [device for device in known_devices(card.root) if device.backend != "cpu"]
    assert device.problems[-1] == UNTRIED
    assert not device.auto


def test_as_a_device_to_train_on(card):
    (family,) = families(card)
    if family == "intel":
        pytest.skip("its counter stands still in a folder")
    device = open_device(f"{family}?root={card.root}")
    try:
        assert device.name == found(card).name
        assert device.trains_on == "gpu"
        assert not device.shares_memory
        assert device.memory_bytes == 17163091968 - 268435456
        assert "bf16" in device.data_types
        assert "power limit 2" in device.mode
    finally:
        device.close()


def test_temperatures_are_those_of_the_card(card):
    (family,) = families(card)
    put(card.root, "/sys/class/thermal/thermal_zone0/type", "x86_pkg_temp\n")
    put(card.root, "/sys/class/thermal/thermal_zone0/temp", "71000\n")
    assert conditions(card).temperature_c == 71.0
    assert 39.0 < conditions(card, family).temperature_c < 50.0
    assert Controller(found(card)).read()["temperature_c"] < 50.0


def test_the_card_with_the_most_memory_is_used_and_the_others_are_named(tmp_path):
    card = made_card(tmp_path / "card", "amd-levels")
    other = BASE.replace("0000:03", "0000:05")
    put(card.root, other + "/uevent", "DRIVER=amdgpu\nPCI_ID=1002:1638\n")
    put(card.root, other + "/mem_info_vram_total", "536870912\n")
    put(card.root, other + "/product_name", "Radeon Graphics\n")
    link(card.root, other + "/drm/card1/device", other)
    link(card.root, "/sys/class/drm/card1", other + "/drm/card1")
    board = find_board(card, "amd")
    assert board.name == "AMD GPU 1002:66AF"
    assert board.problems == ["2 GPUs of the driver amdgpu: only 0000:03:00.0 is used", UNTRIED]
    put(card.root, other + "/mem_info_vram_total", "68719476736\n")
    board = find_board(card, "amd")
    assert board.name == "AMD Radeon Graphics"
    assert board.clock is None
    assert board.sensor is None


@pytest.mark.parametrize("family", ["amd", "intel"])
def test_without_a_card(family, tmp_path):
    put(tmp_path, "/sys/class/drm/card0/device/uevent", "DRIVER=i915\n")
    with pytest.raises(NotThere, match=r"no GPU of this kind here: no .* whose driver is"):
        find_board(MadeTree(tmp_path), family)


# ---------------------------------------------------------------------------------------------------------------- AMD


def test_a_level_of_its_own_is_selected_after_manual(tmp_path):
    card = made_card(tmp_path / "card", "amd-levels")
    with Controller(found(card)) as controller:
        controller.pin(1287.0)
        assert (card.read(LEVEL), card.mask.read_text()) == ("manual", "3")
        assert card.written[-2:] == [LEVEL, SCLK]
        controller.pin(701.0)
        assert card.written[-2:] == [SCLK, SCLK]
    assert (card.read(LEVEL), card.mask.read_text()) == ("auto", "")


@pytest.mark.parametrize(
    ("listed", "clocks"),
    [
        ("0: 500Mhz\n1: 1030Mhz *\n2: 2475Mhz", (500.0, 2475.0)),  # the clock of the moment
        ("0: 500Mhz *\n1: 2475Mhz", (500.0, 2475.0)),
        ("S: 19Mhz *\n0: 500Mhz\n1: 2475Mhz", (500.0, 2475.0)),
        ("0: 300Mhz *\n1: 600Mhz\n2: 900Mhz\n3: 1200Mhz", (300.0, 600.0, 900.0, 1200.0)),
        ("0: 852Mhz\n1: 991Mhz\n2: 991Mhz\n3: 1200Mhz *", (852.0, 991.0, 1200.0)),
    ],
)
def test_lists_of_levels(listed, clocks, tmp_path):
    card = made_card(tmp_path / "card", "amd-rdna", pp_dpm_sclk=listed)
    with Controller(found(card)) as controller:
        assert controller.board.clock.settings_mhz == clocks
        for mhz in clocks:
            controller.pin(mhz)
            assert card.clock_mhz() == mhz


@pytest.mark.parametrize("level", ["manual", "perf_determinism"])
def test_a_selection_of_somebody_else_could_not_be_restored(level, tmp_path):
    card = made_card(tmp_path / "card", "amd-levels", power_dpm_force_performance_level=level)
    with Controller(found(card)) as controller, pytest.raises(FileFailed, match=f"{level}.*could not be restored"):
        controller.pin(701.0)
    assert card.written == []
    assert snapshots(card) == []


@pytest.mark.parametrize(("level", "clocks"), [("low", 1), ("profile_peak", 9), ("high", 9), ("profile_min_sclk", 1)])
def test_another_performance_level_comes_back_and_limits_what_is_offered(level, clocks, tmp_path):
    card = made_card(tmp_path / "card", "amd-levels", power_dpm_force_performance_level=level)
    with Controller(found(card)) as controller:
        settings = controller.describe()["settings_mhz"]
        assert len(settings) == clocks
        controller.pin(settings[-1])
        assert card.read(LEVEL) == "manual"
    assert card.read(LEVEL) == level


def test_the_average_is_read_and_the_value_of_the_moment_if_it_fails(tmp_path):
    card = made_card(tmp_path / "card", "amd-levels")
    hwmon = BASE + "/hwmon/hwmon2"
    put(card.root, hwmon + "/power1_input", "30000000\n")
    assert found(card).sensor.rail == "power1_average"
    assert found(card).sensor.window_s == 1.0

    def fail(path):
        if path.endswith("power1_average"):
            raise FileFailed(path + " cannot be read: Operation not supported")

    card.before_read = fail
    assert found(card).sensor.rail == "power1_input"
    assert found(card).sensor.window_s == 0.0


def test_a_card_without_a_sensor_is_found_with_its_clock(tmp_path):
    card = made_card(tmp_path / "card", "amd-levels")
    (power,) = card.glob(BASE + "/hwmon/hwmon2/power1_average")
    (tmp_path / "card" / power.lstrip("/")).unlink()
    board = found(card)
    assert board.sensor is None
    assert board.clock is not None
    assert "no power sensor: looked for power1_average and power1_input" in board.problems[0]


def test_a_sleeping_card_is_not_woken_by_a_reading_of_its_clock(tmp_path):
    card = made_card(tmp_path / "card", "amd-levels", **{"power/runtime_status": "suspended"})
    clock = found(card).clock
    assert clock.is_suspended()
    assert clock.now_mhz() is None


# -------------------------------------------------------------------------------------------------------------- Intel


def test_the_counter_of_the_card_counts_and_that_of_the_package_is_a_rail(tmp_path):
    card = made_card(tmp_path / "card", "intel-arc")
    sensor = found(card).sensor
    assert (sensor.rail, sensor.covers) == ("card", "the whole card")
    card.sleep(0.1)
    reading = sensor.read()
    assert reading.power_w == pytest.approx(card.power_w, rel=1e-3)
    assert set(reading.rails_w) == {"card", "pkg"}


def test_a_counter_of_the_package_alone(tmp_path):
    card = made_card(tmp_path / "card", "intel-arc")
    for name in ("energy1_input", "energy1_label"):
        (tmp_path / "card" / BASE.lstrip("/") / "hwmon" / "hwmon3" / name).unlink()
    card.sleep(0.1)
    board = found(card)
    assert board.sensor.covers == "the GPU's package, not the whole card"
    with pytest.raises(NoReading, match="does not move"):
        board.sensor.read()


def test_every_tile_computes_at_the_same_clock(tmp_path):
    card = made_card(tmp_path / "card", "intel-arc")
    for unit in ("tile0/gt1", "tile1/gt2", "tile1/gt3"):  # the second of each is for video
        for name in ("act", "min", "max", "rpn", "rp0"):
            put(card.root, f"{BASE}/{unit}/freq0/{name}_freq", f"{card.read(f'{FREQ0}/{name}_freq')}\n")
    before = texts(card.root)
    with Controller(found(card)) as controller:
        controller.pin(300.0)
        limits = {path: card.read(path) for path in card.glob(BASE + "/tile*/gt*/freq0/max_freq")}
        assert [limits[path] for path in sorted(limits)] == ["300", "2400", "300", "2400"]
    assert texts(card.root) == before


def test_a_limit_that_somebody_set_is_the_highest_that_is_offered(tmp_path):
    card = made_card(tmp_path / "card", "intel-arc", **{"tile0/gt0/freq0/max_freq": "1250"})
    with Controller(found(card)) as controller:
        assert controller.describe()["settings_mhz"][-1] == 1250.0
        with pytest.raises(BadRequest, match="above 1250 MHz, the limit of Intel GPU 8086:56A0 before; raise it first"):
            controller.pin(2400.0)
    assert (card.read(FREQ0 + "/min_freq"), card.read(FREQ0 + "/max_freq")) == ("300", "1250")
