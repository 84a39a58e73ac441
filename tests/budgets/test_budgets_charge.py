"""Sources of a battery's charge: gauges of the kernel, files that are being written, callables, a simulation."""

from __future__ import annotations

import pytest

from wattune.budgets.battery import Battery
from wattune.budgets.charge import (
    CalledCharge,
    ChargeFile,
    ChargeUnread,
    PowerSupply,
    SimulatedBattery,
    charge_source,
)
from wattune.errors import InputError

CAPACITY_J = 80 * 3600.0


def gauge(folder, **values):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def test_a_gauge_in_energy_charge_or_percent(tmp_path):
    energy = gauge(tmp_path / "BAT0", energy_now=30_000_000, energy_full=40_000_000, capacity=10)
    charge = gauge(tmp_path / "BAT1", charge_now=2_500_000, charge_full=5_000_000, voltage_now=12_000_000, capacity=10)
    percent = gauge(tmp_path / "BAT2", capacity=63, status="Charging")
    assert [PowerSupply(one).share(0.0) for one in (energy, charge, percent)] == [0.75, 0.5, 0.63]
    assert [PowerSupply(one).is_steady for one in (energy, percent)] == [False, True]
    assert charge_source("BAT0", CAPACITY_J, root=tmp_path).share(0.0) == 0.75
    assert charge_source(percent, CAPACITY_J).share(0.0) == 0.63
    (percent / "capacity").unlink()
    with pytest.raises(ChargeUnread, match="capacity cannot be read"):
        PowerSupply(percent).share(0.0)


@pytest.mark.parametrize(("energy_now", "why"), [("-1", "is -1 of"), ("90000000", "is 9e"), ("x", "is not a number")])
def test_a_gauge_that_shows_nonsense(tmp_path, energy_now, why):
    with pytest.raises(ChargeUnread, match=why):
        PowerSupply(gauge(tmp_path / "BAT0", energy_now=energy_now, energy_full=40_000_000)).share(0.0)


@pytest.mark.parametrize(("text", "share"), [("63", 0.63), ("63 %", 0.63), ("40Wh", 0.5), ("144000 J", 0.5)])
def test_a_file_with_one_number(tmp_path, text, share):
    path = tmp_path / "charge"
    path.write_text(f"{text}\n")
    assert ChargeFile(path, CAPACITY_J).share(0.0) == pytest.approx(share)


def test_half_a_number_does_not_count(tmp_path):
    path = tmp_path / "charge"
    path.write_text("63\n")
    source = ChargeFile(path, CAPACITY_J)
    assert source.share(0.0) == 0.63
    path.write_text("6")
    assert source.share(60.0) == 0.63
    path.write_text("62")
    assert source.share(120.0) == 0.63
    assert source.share(180.0) == 0.62
    path.write_text("half\n")
    with pytest.raises(ChargeUnread, match="has no charge such as 63% or 51Wh: 'half'"):
        source.share(240.0)


def test_a_callable_returns_a_share_or_none():
    assert CalledCharge(lambda time_s: time_s / 100).share(50.0) == 0.5
    for value in (None, "50", True, 1.5, float("nan")):
        with pytest.raises(ChargeUnread):
            CalledCharge(lambda time_s, value=value: value).share(0.0)


def test_a_source_that_is_not_there_is_refused_with_the_gauges_that_are(tmp_path):
    gauge(tmp_path / "BAT7", capacity=63)
    with pytest.raises(InputError, match=r"--charge: BAT0 cannot be read: No such file.*gauges here: BAT7"):
        charge_source("BAT0", CAPACITY_J, root=tmp_path)


def test_a_simulated_battery_charges_with_a_loss_and_is_never_above_full():
    battery = SimulatedBattery(CAPACITY_J, sun_w=lambda time_s: 10.0, share=0.5)
    assert battery.share(0.0, 0.0) == 0.5
    assert battery.share(3600.0, 3600 * 20.0) == pytest.approx(0.5 - 10 / 80)
    assert battery.share(7200.0, 3600 * 20.0) == pytest.approx(0.5 - 10 / 80 + 0.95 * 10 / 80)
    other = SimulatedBattery(CAPACITY_J, sun_w=lambda time_s: 10.0)
    other.load_state_dict(battery.state_dict())
    assert other.share(7200.0, 3600 * 20.0) == battery.share(7200.0, 3600 * 20.0)
    assert other.share(1e6, 3600 * 20.0) == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"capacity_j": 0.0}, "the capacity of the battery: 0.0"),
        ({"reserve": 1.0}, "the reserve: 1.0"),
        ({"panel_w": 20.0}, "a panel and its place; allowed: both or neither"),
        ({"panel_w": -1.0, "at": (0, 0)}, "the power of the panel: -1.0"),
        ({"mode": "never"}, "the reserve mode: never; allowed: strict, soon"),
        ({"panel_w": 1.0, "at": (100.0, 0.0)}, "latitude: 100.0"),
    ],
)
def test_what_is_not_a_battery(fields, message):
    with pytest.raises(InputError, match=message):
        Battery(**{"capacity_j": CAPACITY_J, **fields})
