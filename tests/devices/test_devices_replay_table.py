"""Tables in CSV, replayed as devices that are measured."""

import json
from statistics import fmean, stdev

import pytest
from tests.support.device_examples import make_table, make_work, run_steps

from wattune.cap import PowerCap
from wattune.devices import Knob, ReplayDevice, open_device
from wattune.devices.replay import NOISE, Noise
from wattune.devices.replay_table import OPTIONAL, REQUIRED, read_profile
from wattune.errors import CapError, InputError, OutOfDeviceMemory, RecordError
from wattune.job.config import RunConfig
from wattune.planning import plan
from wattune.point import KNOBS, Knobs
from wattune.records import ProfileCell, ProfileTable

HEAD = "batch_size,clock_mhz,step_s,power_w\n"


@pytest.fixture
def write(tmp_path):
    """Write a CSV file: text -> path."""

    def written(text, name="table.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def readings(device, work, steps):
    """The step times, and a reading for each period of the sensor."""
    times_s, powers_w = [], []
    with device.every(device.sensor.period_s, lambda: powers_w.append(device.power_w())):
        for _ in range(steps):
            begin_s = device.now_s()
            run_steps(device, work)
            times_s.append(device.now_s() - begin_s)
    return times_s, powers_w


# ------------------------------------------------------------------------------------------------------------- reading


def test_a_table_of_every_column(write):
    names = (*REQUIRED, *OPTIONAL)
    values = (16, 0.5, 9.5, 4, 900, 1600, 1200, 6, 15, 0.01, 0.2)
    path = write(",".join(f" {name.upper()} " for name in names) + "\n\n" + ", ".join(map(str, values)) + "\n")
    (cell,) = read_profile(path).cells
    assert cell == ProfileCell(
        batch_size=16,
        micro_batch_size=4,
        clock_mhz=900.0,
        memory_clock_mhz=1600.0,
        cpu_clock_mhz=1200.0,
        cpu_cores=6,
        power_limit_w=15.0,
        step_s=0.5,
        step_std_s=0.01,
        power_mean_w=9.5,
        power_std_w=0.2,
        power_peak_w=9.5,
    )
    assert [knob.name for knob in open_device(f"replay:{path}").knobs] == list(KNOBS)


def test_a_table_without_a_knob_and_with_empty_cells(write):
    path = write("batch_size,micro_batch_size,step_s,power_w,power_std_w\n8,,0.1,5,\n8,4,0.2,4,0.1\n16,16,0.2,6,\n")
    table = read_profile(path)
    assert [(c.batch_size, c.micro_batch_size, c.power_std_w) for c in table.cells] == [
        (8, 4, 0.1),
        (8, None, None),
        (16, None, None),
    ]
    assert open_device(f"replay:{path}").knobs == ()


def test_json_with_a_mark_or_of_one_object_a_line(write):
    rows = [json.dumps({"batch_size": size, "step_s": 0.1, "power_w": 5}) for size in (8, 16)]
    for text in (f"\ufeff[{', '.join(rows)}]", "\n".join(rows)):
        assert open_device(f"replay:{write(text, 'table.json')}").replayed_table.batch_sizes == (8, 16)
    record = write("\ufeff" + json.dumps(make_table().dump()), "record.json")
    assert open_device(f"replay:{record}").replayed_table == make_table()
    with pytest.raises(RecordError, match="is not valid JSON"):
        open_device(f"replay:{write('{', 'table.json')}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "exactly once: batch_size, step_s, power_w"),
        ("clock_mhz,step_s,power_w\n900,0.1,5\n", "exactly once: batch_size"),
        ("batch_size,batch_size,step_s,power_w\n8,8,0.1,5\n", "exactly once: batch_size"),
        (HEAD, "has no cells"),
        ("batch_size,step_s,power_w,gpu_mhz\n8,0.1,5,900\n", "unknown or repeated columns: gpu_mhz"),
        ("batch_size,step_s,power_w,clock_mhz,clock_mhz\n8,0.1,5,9,9\n", "unknown or repeated columns: clock_mhz"),
        ("batch_size,step_s,power_w,\n8,0.1,5,\n", "unknown or repeated columns: one without a name"),
        (HEAD + "8,900,0.1,5\n\n8,900.0,0.2,5\n", "line 4 is a duplicate cell.*first is in line 2"),
        (HEAD + "8,900,nan,5\n", "line 2: step_s: nan; allowed: a number above 0"),
        (HEAD + "8,900,0.1,-5\n", "line 2: power_w: -5"),
        (HEAD + "8,900,0.1,inf\n", "line 2: power_w: inf"),
        (HEAD + "8,900,0,5\n", "line 2: step_s: 0"),
        (HEAD + "8,,0.1,5\n", "line 2: clock_mhz: empty"),
        (HEAD + "8,fast,0.1,5\n", "line 2: clock_mhz: fast"),
        (HEAD + "8.5,900,0.1,5\n", "line 2: batch_size: 8.5; allowed: a whole number from 1 on"),
        (HEAD + "0,900,0.1,5\n", "line 2: batch_size: 0"),
        (
            "batch_size,micro_batch_size,step_s,power_w\n8,16,0.1,5\n",
            "line 2: micro_batch_size: 16; allowed: at most 8",
        ),
        (
            "batch_size,step_s,power_w,power_std_w\n8,0.1,5,-1\n",
            "line 2: power_std_w: -1; allowed: a number, 0 or more",
        ),
    ],
)
def test_wrong_tables_are_refused_in_one_line(text, said, write):
    path = write(text)
    with pytest.raises(RecordError, match=said) as caught:
        open_device(f"replay:{path}")
    assert "\n" not in str(caught.value)


def test_a_table_of_another_program_is_read_by_its_columns(write):
    path = write(
        '{"cache": {"a": {"bs": 8, "time": 77.5, "clk": 2100, "mW": 9500, "times": [77, 78]},'
        ' "b": {"bs": 16, "time": 151.0, "clk": 2100, "mW": 11000, "times": []}}}',
        "cache.json",
    )
    with pytest.raises(
        RecordError, match=r"once: batch_size, step_s, power_w; found: bs, time, clk, mW; may be meant: batch"
    ):
        open_device(f"replay:{path}")
    columns = "batch_size=bs,step_ms=time,power_mw=mW,clock_mhz=clk"
    config = RunConfig.read({"device": f"replay:{path}", "columns": columns, "cap": "10W"})
    cells = open_device(config.device).replayed_table.cells
    assert [(cell.batch_size, cell.step_s, cell.power_mean_w, cell.clock_mhz) for cell in cells] == [
        (8, pytest.approx(0.0775), pytest.approx(9.5), 2100),
        (16, pytest.approx(0.151), pytest.approx(11.0), 2100),
    ]


def test_milliwatts_in_a_table_are_doubted_by_the_cap(write):
    text = "batch_size,step_s,power_mw\n8,0.1,4100\n16,0.15,5200\n"
    table = read_profile(write(text))
    assert plan(table, cap=PowerCap(4.5), batch_size=8).batch_size == 8
    with pytest.raises(CapError, match=r"lowest measured .* is 4100 W, with batch size 8; are these mW\?"):
        plan(read_profile(write(text.replace("power_mw", "power_w"))), cap=PowerCap(4.5), batch_size=8)


def test_steps_that_get_shorter_as_batches_grow_are_doubted(write):
    (problem,) = open_device(f"replay:{write(HEAD + '8,900,11.3,50' + chr(10) + '64,900,7.5,60')}").problems
    assert problem == "steps get shorter as batches grow, 11.3 s at 8 and 7.5 s at 64: are these times of an epoch?"
    assert open_device(f"replay:{write(HEAD + '8,900,0.1,50' + chr(10) + '64,900,0.09,60')}").problems == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("noise=-1", "replay: noise: -1"),
        ("noise=much", "replay: noise: much"),
        ("noise=nan", "replay: noise: nan"),
        ("period_s=0", "replay: period_s: 0"),
        ("seed=0.5", "replay: seed: 0.5"),
        ("seed=-1", "replay: seed: -1"),
        ("rate=1", "not an option"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options, said, write):
    path = write(HEAD + "8,900,0.1,5\n")
    with pytest.raises(InputError, match=said) as caught:
        open_device(f"replay:{path}?{options}")
    assert "\n" not in str(caught.value)


def test_of_cells_that_draw_equally_much_their_order_does_not_decide_what_is_drawn_at_rest():
    def cell(clock_mhz, power_std_w):
        return ProfileCell(
            batch_size=8, clock_mhz=clock_mhz, step_s=0.1, power_mean_w=5.0, power_std_w=power_std_w, power_peak_w=5.0
        )

    cells = (cell(300.0, 0.0), cell(600.0, None))
    tables = [ProfileTable(device="t", workload="w", cells=order) for order in (cells, cells[::-1])]
    one, other = (ReplayDevice(table, Noise(seed=1)) for table in tables)
    assert one.power_w() == other.power_w()


# ------------------------------------------------------------------------------------------------------------- answers


def test_readings_and_step_times_scatter_as_the_table_says(write):
    head = "batch_size,clock_mhz,step_s,step_std_s,power_w,power_std_w\n"
    device = open_device(f"replay:{write(head + '8,900,0.2,0.01,5,0.4')}?seed=1")
    times_s, powers_w = readings(device, make_work(8), 500)
    assert len(powers_w) == pytest.approx(1000, rel=0.05)
    assert fmean(times_s) == pytest.approx(0.2, rel=0.01)
    assert stdev(times_s) == pytest.approx(0.01, rel=0.1)
    assert fmean(powers_w) == pytest.approx(5, rel=0.01)
    assert stdev(powers_w) == pytest.approx(0.4, rel=0.1)


def test_the_noise_is_that_of_the_spec_where_the_table_has_none(write):
    path = write(HEAD + "8,900,0.2,5\n")
    for options, sd_w in (("", NOISE * 5), ("?noise=0.1", 0.5), ("?noise=0", 0.0)):
        times_s, powers_w = readings(open_device(f"replay:{path}{options}"), make_work(8), 300)
        assert times_s == pytest.approx([0.2] * 300)
        assert stdev(powers_w) == pytest.approx(sd_w, rel=0.15)


def test_a_reading_is_shown_for_a_period(write):
    device = open_device(f"replay:{write(HEAD + '8,450,0.1,2' + chr(10) + '8,900,0.1,5')}?noise=0&period_s=1")
    assert device.sensor.period_s == 1.0
    shown = []
    with device.every(0.5, lambda: shown.append(device.power_w())):
        run_steps(device, make_work(8), 9)
        device.wait(0.15)  # 1.05 s have passed, the last of them at rest
        device.wait(1.0)
    assert shown == [2.0, 2.0, 2.0, 2.0]  # a reading is of its instant; at rest, the lowest power of the table
    with device.every(0.5, lambda: shown.append(device.power_w())):
        run_steps(device, make_work(8), 10)
    assert shown[4:] == [2.0, 5.0]


def test_a_seed_repeats_the_run_and_another_one_does_not(write):
    path = write(HEAD + "8,900,0.2,5\n")
    runs = [
        readings(open_device(f"replay:{path}{options}", seed=seed), make_work(8), 20)[1]
        for options, seed in (("", 7), ("?seed=7", 0), ("", 8))
    ]
    assert runs[0] == runs[1] != runs[2]


def test_cells_that_are_not_in_the_table_are_refused_in_one_line(write):
    device = open_device(f"replay:{write(HEAD + '8,450,0.1,2' + chr(10) + '16,900,0.1,5')}")
    assert device.knobs == (Knob("clock_mhz", (450.0, 900.0)),)
    for size in (8, 32):
        with pytest.raises(InputError, match=f"batch size {size} at 900 MHz") as caught, device.step(make_work(size)):
            pytest.fail("the step began")
        assert "\n" not in str(caught.value)


def test_a_step_that_is_moved_to_where_there_is_no_cell_ends_as_the_gentlest_of_its_batch(write):
    device = open_device(f"replay:{write(HEAD + '8,450,0.1,2' + chr(10) + '16,700,0.4,4' + chr(10) + '16,900,0.2,5')}")
    with (
        device.at(Knobs(clock_mhz=900.0)) as setting,
        device.every(0.1, lambda: setting.change(Knobs(clock_mhz=450.0))),
        device.step(make_work(16)),
    ):
        pass
    assert device.now_s() == pytest.approx(0.1 + 0.5 * 0.4)


def test_the_mode_tells_tables_and_noise_apart(write):
    one, other = write(HEAD + "8,900,0.2,5\n"), write(HEAD + "8,900,0.2,6\n", "b.csv")
    specs = (f"replay:{one}", f"replay:{other}", f"replay:{one}?noise=0.1", f"replay:{one}?period_s=1")
    assert len({open_device(spec).mode for spec in specs}) == len(specs)
    assert open_device(f"replay:{one}?seed=4").mode == open_device(f"replay:{one}").mode


def test_what_did_not_fit_does_not_fit_at_any_setting():
    device = ReplayDevice(make_table())
    for knobs in device.combinations():
        with device.at(knobs), pytest.raises(OutOfDeviceMemory, match="16 did not fit"), device.step(make_work(16)):
            pytest.fail("the step began")


def test_a_change_in_the_middle_of_a_step_replays_the_rest_of_another_cell():
    device = ReplayDevice(make_table())
    with (
        device.at(Knobs(clock_mhz=200.0)) as setting,
        device.every(0.05, lambda: setting.change(Knobs(clock_mhz=100.0))),
    ):
        run_steps(device, make_work(8))
    # 0.1 s a step at 200 MHz, half of which has passed; 0.2 s at 100 MHz
    assert device.now_s() == pytest.approx(0.05 + 0.5 * 0.2)


def test_an_evaluation_takes_its_share_of_a_step():
    device = ReplayDevice(make_table())
    evaluation = make_work(256, gflop=2.0, training=False)
    with pytest.raises(InputError, match="batch size 256"), device.step(evaluation):
        pytest.fail("nothing was replayed yet that it could be a share of")
    step = make_work(8, gflop=1.0)
    run_steps(device, step)
    before_s = device.now_s()
    run_steps(device, evaluation)
    assert device.now_s() - before_s == pytest.approx(0.1 * evaluation.flops / step.flops)


def test_tables_that_cannot_be_replayed_are_refused_in_one_line():
    clocks, limits = make_table("clock_mhz"), make_table("power_limit_w")
    mixed = clocks.model_copy(update={"cells": (*clocks.measured, *limits.measured)})
    nothing = clocks.model_copy(update={"cells": tuple(c for c in clocks.cells if c.out_of_memory)})
    for table in (mixed, nothing):
        with pytest.raises(RecordError) as caught:
            ReplayDevice(table)
        assert "\n" not in str(caught.value)


def test_a_state_of_another_recording_is_refused():
    device = ReplayDevice(make_table("clock_mhz"))
    run_steps(device, make_work(8))
    with pytest.raises(InputError, match="another recording"):
        ReplayDevice(make_table(None)).load_state_dict(device.state_dict())
