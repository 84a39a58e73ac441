"""Profiles of a table that is measured as if it were a board."""

from __future__ import annotations

import itertools

import pytest
from tests.support import training_runs as made
from tests.support.device_examples import make_table

import wattune
from wattune.errors import InputError, RecordError
from wattune.records import ProfileTable
from wattune.search.grid import VALUES

SIZES, CLOCKS, MEMORY = (8, 16, 32, 64), (300.0, 450.0, 600.0, 750.0, 900.0), (800.0, 1600.0)


def figures(size, clock, memory=1600.0):
    """A board's step time and power."""
    return (
        0.01 + 0.9 * size / clock + 0.2 * size / memory,
        3 + 8 * (clock / 900) ** 2 * size / (size + 8) + memory / 800,
    )


@pytest.fixture
def write(tmp_path):
    """Write a table: its knobs, and a call that tells which cells it has -> the device's spec."""

    def written(knobs=("clock_mhz",), has=lambda *cell: True):
        names = ("batch_size", *knobs, "step_s", "power_w")
        ranges = (SIZES, CLOCKS, MEMORY)[: 1 + len(knobs)]
        rows = [(*cell, *figures(*cell)) for cell in itertools.product(*ranges) if has(*cell)]
        path = tmp_path / "bench.csv"
        path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n")
        return f"replay:{path}"

    return written


BOTH = ("clock_mhz", "memory_clock_mhz")


def test_the_full_strategy_measures_every_cell(write):
    table = wattune.profile(write())
    assert [(cell.batch_size, cell.clock_mhz) for cell in table.measured] == list(itertools.product(SIZES, CLOCKS))
    assert (table.device, table.workload, table.provenance.kind) == ("bench", "recorded workload", "replayed")
    assert table.reference is None
    assert table.cost.probes == len(SIZES) * len(CLOCKS)
    for cell in table.measured:
        step_s, power_w = figures(cell.batch_size, cell.clock_mhz)
        assert cell.step_s == pytest.approx(step_s)
        assert cell.power_mean_w == pytest.approx(power_w, rel=0.05)  # five readings or more, of 2 % noise each
        assert cell.power_peak_w > cell.power_mean_w
    assert ProfileTable.parse(table.dump()) == table


@pytest.mark.parametrize("strategy", ["full", "staircase"])
def test_several_knobs_and_cells_that_the_table_lacks(strategy, write):
    def has(size, clock, memory):
        return (clock, memory) != (300.0, 800.0) and (size, clock) not in ((16, 300.0), (32, 600.0), (64, 900.0))

    spec = write(BOTH, has)
    cap_w = 9.0
    table = wattune.profile(spec, cap_w=cap_w, strategy=strategy)
    probes = [*table.cells, *table.aborted]
    assert all(has(probe.batch_size, probe.clock_mhz, probe.memory_clock_mhz) for probe in probes)
    if strategy == "full":
        assert len(probes) == sum(has(*cell) for cell in itertools.product(SIZES, CLOCKS, MEMORY))
    else:
        assert len(probes) < 0.8 * len(SIZES) * len(CLOCKS) * len(MEMORY)
    fastest = {
        size: max(clock for clock, memory in itertools.product(CLOCKS, MEMORY)
                  if has(size, clock, memory) and figures(size, clock, memory)[1] < 0.9 * cap_w)
        for size in SIZES
    }  # fmt: skip
    for size, clock in fastest.items():
        assert max(cell.clock_mhz for cell in table.measured if cell.batch_size == size) >= clock
    plan = wattune.plan(table, cap_w=cap_w, batch_size=32)
    assert plan.knobs.keys() == set(BOTH)


def test_a_probe_above_the_cap_ends_where_the_lowest_setting_has_no_cell(write):
    path = write(BOTH, lambda size, clock, memory: clock > 300 or size == 8)
    table = wattune.profile(path, cap_w=8.0, strategy="staircase")
    assert table.aborted
    assert 0 < table.cost.above_cap_s < 2


def test_the_guided_strategy_goes_round_cells_that_the_table_lacks(write):
    def has(size, clock):
        return (size, clock) not in ((32, 300.0), (16, 600.0), (16, 750.0))

    table = wattune.profile(write(has=has), cap_w=9.0, strategy="guided")
    assert all(has(cell.batch_size, cell.clock_mhz) for cell in [*table.cells, *table.aborted])
    assert figures(table.guided.pick.batch_size, table.guided.pick.clock_mhz)[1] <= 9.0


def test_a_long_list_of_clocks_with_holes(tmp_path):
    clocks = [300.0 + 15 * i for i in range(2 * VALUES)]
    rows = [(8, clock, *figures(8, clock)) for clock in clocks] + [(32, c, *figures(32, c)) for c in clocks[::3]]
    path = tmp_path / "long.csv"
    path.write_text("batch_size,clock_mhz,step_s,power_w\n" + "\n".join(",".join(map(str, row)) for row in rows))
    table = wattune.profile(f"replay:{path}", cap_w=9.0, strategy="guided")
    assert all(cell.batch_size == 8 or cell.clock_mhz in clocks[::3] for cell in table.cells)


@pytest.mark.slow
def test_a_profile_is_measured_again_and_keeps_its_key(tmp_path):
    workload = made.workload()
    simulated = wattune.profile("sim:jetson-nano", workload, strategy="full", reference=False)
    spec = f"replay:{simulated.save(tmp_path / 'profile.json')}"
    for given in (None, workload):
        table = wattune.profile(spec, given, cap_w=4.5, strategy="guided")
        assert (table.key.model, table.key.data_type) == (simulated.key.model, simulated.key.data_type)
        assert table.workload == workload.name
        assert {cell.point for cell in table.measured} <= {cell.point for cell in simulated.measured}
    plan = wattune.plan(table, cap_w=4.5, batch_size=8)
    record = wattune.train(spec, workload, plan)
    assert record.provenance.kind == "replayed"
    assert record.plan.point == plan.point


def test_a_workload_takes_its_batch_sizes_from_the_table(tmp_path):
    lines = ["batch_size,clock_mhz,step_s,power_w", *(f"{size},900,{size / 100},5" for size in (8, 64))]
    path = tmp_path / "bench.csv"
    path.write_text("\n".join(lines))
    table = wattune.profile(f"replay:{path}", made.workload())
    assert set(table.batch_sizes) == {8, 64} & set(made.workload().batch_sizes)
    path.write_text("\n".join([lines[0], "7,900,0.1,5"]))
    with pytest.raises(RecordError, match="no batch size of this workload"):
        wattune.profile(f"replay:{path}", made.workload())


def test_what_did_not_fit_is_in_the_profile(tmp_path):
    path = make_table().save(tmp_path / "profile.json")
    table = wattune.profile(f"replay:{path}")
    assert {cell.batch_size for cell in table.cells if cell.out_of_memory} == {16}
    assert {cell.point for cell in table.measured} == {cell.point for cell in make_table().measured}


def test_what_a_table_cannot_do_is_said_in_one_line(write):
    spec = write()
    for error, said, arguments in (
        (InputError, "no reference workloads", {"reference": True}),
        (RecordError, "algorithm", {"algorithm": "forward-gradient"}),
        (InputError, "only with a cap", {"strategy": "guided"}),
    ):
        with pytest.raises(error, match=said) as caught:
            wattune.profile(spec, **arguments)
        assert "\n" not in str(caught.value)


def test_a_guided_profile_chooses_a_clock_and_a_power_limit(tmp_path):
    """A card that lowers its locked clock until its power is below its limit."""
    clocks, limits = range(600, 1501, 100), range(100, 251, 25)

    def figures(clock, limit):
        while (power_w := 50 + 200 * (clock / 1500) ** 2.5) > limit:
            clock -= 1
        return 0.1 + 150 / clock, power_w

    cells = {(clock, limit): figures(clock, limit) for clock in clocks for limit in limits}
    path = tmp_path / "card.csv"
    lines = [",".join(map(str, (8, *cell, *found))) for cell, found in cells.items()]
    path.write_text("\n".join(["batch_size,clock_mhz,power_limit_w,step_s,power_w", *lines]))
    table = wattune.profile(f"replay:{path}", cap_w=180, strategy="guided")
    pick = table.guided.pick
    assert cells[pick.clock_mhz, pick.power_limit_w][1] <= 180
    assert pick.step_s <= 1.05 * min(step_s for step_s, power_w in cells.values() if power_w <= 180)


def test_a_guided_profile_refuses_knobs_whose_effect_it_cannot_forecast(write):
    with pytest.raises(InputError, match=r"forecast these knobs.*clock_mhz, cpu_cores.*the strategy full") as caught:
        wattune.profile(write(("clock_mhz", "cpu_cores")), cap_w=9.0, strategy="guided")
    assert "\n" not in str(caught.value)
