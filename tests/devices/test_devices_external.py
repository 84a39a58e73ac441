"""Meters of one's own, behind a real HTTP server and real commands."""

import json
import shlex
import sys

import pytest
from tests.devices.contract import DeviceContract
from tests.support.fake_server import Answer, faked

from wattune.cap import PowerCap
from wattune.devices import open_device
from wattune.errors import DeviceUnavailable, InputError, SensorError
from wattune.point import Knobs
from wattune_agent import meter_sensor

TASMOTA = {"StatusSNS": {"Time": "2024-05-01T12:00:00", "ENERGY": {"Total": 3.1, "Power": 43, "Phases": [41.5, 1.5]}}}


def says(body, status=200):
    """What a plug answers, which closes each connection."""
    return lambda asked: Answer(status, body, {"Connection": "close"})


@pytest.fixture
def plug():
    """A smart plug."""
    with faked(says(TASMOTA)) as fake:
        fake.url += "/cm?cmnd=Status%208"
        yield fake


def python(code):
    """A command that runs this."""
    return f"{sys.executable} -S -c {shlex.quote(code)}"


class TestExternal(DeviceContract):
    has_controller = True

    @pytest.fixture
    def device(self, plug):
        device = open_device(f"external:{plug.url}#field=StatusSNS.ENERGY.Power&period_s=0.02")
        yield device
        device.close()

    another = device


def test_a_field_with_its_unit(plug):
    device = open_device(f"external:{plug.url}#field=StatusSNS.ENERGY.Phases.0&unit=mW&period_s=30")
    assert device.power_w() == pytest.approx(0.0415)
    assert device.name == f"external:{plug.url}"
    assert device.sensor.window_s == device.sensor.period_s == 30
    assert device.knobs == ()
    assert device.trains_on == "gpu"
    assert device.memory_bytes > 0
    assert PowerCap.of("12W@supply").at_sensor(device.supply, device.sensor.window_s).limit_w == 12
    for _ in range(10):
        device.power_w()
    assert len(plug.asked) == 1  # once a period, whoever reads it how often
    with device.at(None):
        assert device.current() is None
    with pytest.raises(InputError), device.at(Knobs(clock_mhz=500.0)):
        pytest.fail("it has no clock")


def test_a_unit_beside_the_number_goes_first(plug):
    plug.answer = says(" 1250.5 mW\n")
    assert open_device(f"external:{plug.url}#unit=kW").power_w() == pytest.approx(1.2505)
    plug.answer = says("12.5")
    assert open_device(f"external:{plug.url}").power_w() == 12.5


def test_a_command():
    command = python("print('{\"power\": 5.5}')")
    device = open_device(f"external:{command}#field=power")
    assert device.power_w() == 5.5
    assert open_device("external:echo 7W").power_w() == 7.0


@pytest.mark.parametrize(
    ("answer", "field", "said"),
    [
        (json.dumps(TASMOTA), "StatusSNS.ENERGY.Watt", "StatusSNS.ENERGY.Total, StatusSNS.ENERGY.Power"),
        (json.dumps(TASMOTA), "StatusSNS.ENERGY.Phases.7", "no field"),
        (json.dumps(TASMOTA), "StatusSNS.Time", "is not a number"),
        (json.dumps(TASMOTA), "", "for #field=: StatusSNS.ENERGY.Total"),
        ('{"on": true}', "on", "is not a number"),
        ("busy", "power", "not JSON, but 'busy'"),
        ("busy", "", "is not a number, but 'busy'"),
        ("", "", "is not a number"),
        ("-3", "", "reads -3 W"),
        ("0", "", "reads 0 W"),
        ("1e300", "", "no meter of one device"),
    ],
)
def test_an_answer_that_is_no_power(plug, answer, field, said):
    plug.answer = says(answer)
    options = f"#field={field}" if field else ""
    with pytest.raises(DeviceUnavailable, match=said) as caught:
        open_device(f"external:{plug.url}{options}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("external", InputError, "a URL or a command"),
        ("external:  #unit=W", InputError, "a URL or a command"),
        ("external:echo 5#unit=hp", InputError, "uW, mW, W, kW"),
        ("external:echo 5#period_s=0", InputError, "period_s"),
        ("external:echo 5#period_s=soon", InputError, "period_s"),
        ("external:echo 5#fields=a", InputError, "field, period_s, unit"),
        ("external:echo '5", InputError, "No closing quotation"),
        ("external:http://plug:port/", InputError, "not a URL"),
        ("external:/no/such/meter --once", DeviceUnavailable, "/no/such/meter cannot be run"),
        ("external:false", DeviceUnavailable, "ended with 1"),
        ("external:http://127.0.0.1:9/", DeviceUnavailable, "gave no reading"),
    ],
)
def test_what_cannot_be_a_meter(spec, error, said):
    with pytest.raises(error, match=said) as caught:
        open_device(spec)
    assert caught.value.exit_code == 2


def test_a_command_that_hangs(monkeypatch):
    monkeypatch.setattr(meter_sensor, "TIMEOUT_S", 0.1)
    with pytest.raises(DeviceUnavailable, match="did not end within"):
        open_device("external:sleep 60")


def test_a_meter_that_goes_away_and_comes_back(plug):
    device = open_device(f"external:{plug.url}#field=StatusSNS.ENERGY.Power&period_s=0.001")
    assert device.power_w() == 43
    plug.answer = says("", 503)
    device.wait(0.01)
    with pytest.raises(SensorError, match="503"):
        device.power_w()
    plug.answer = says(TASMOTA)
    device.wait(0.01)
    assert device.power_w() == 43
