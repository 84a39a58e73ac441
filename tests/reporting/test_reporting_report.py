import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html import unescape
from importlib.resources import files

import pytest
from tests.support import report_records as samples

from wattune.cap import PowerCap
from wattune.errors import OutputError, RecordError
from wattune.planning import plan
from wattune.records import BoardEvent, CapInterval, GuardEvent, Plan
from wattune.reporting import RecordSet, plan_text, summary, write_report
from wattune.reporting.charts import Area, Dots, Line
from wattune.reporting.drawing import draw
from wattune.reporting.heat_maps import number
from wattune.reporting.page import Figure, Table, render
from wattune.reporting.report import compose, headline
from wattune.search.observation import capped_power


@pytest.fixture(scope="module")
def run():
    return samples.run()


@pytest.fixture(scope="module")
def html(run):
    return render(compose(run))


def figures(page):
    return {item.key: item.chart for section in page.sections for item in section.items if isinstance(item, Figure)}


def named(chart):
    return {mark.name: mark for mark in chart.marks if isinstance(mark, Line | Dots) and mark.name}


def variants():
    table, staircase, curve = samples.profile(), samples.profile(strategy="staircase"), samples.efficiency()
    full = samples.run()
    yield "all", full
    yield "no cap", samples.run(cap_w=None)
    yield (
        "staircase",
        RecordSet(profile=staircase, efficiency=curve, plan=plan(staircase, curve, cap=PowerCap(samples.CAP_W))),
    )
    yield "power limit", samples.other_actuator(limits=True)
    yield "no actuator", samples.other_actuator(limits=False)
    yield "algorithms", samples.several_algorithms(memory_bytes=8e6)
    censored = samples.efficiency(censored=8)
    yield (
        "censored",
        RecordSet(profile=table, efficiency=censored, plan=plan(table, censored, cap=PowerCap(samples.CAP_W))),
    )
    for name in ("profile", "efficiency", "plan", "training", "comparison"):
        yield f"only {name}", RecordSet(**{name: getattr(full, name)})
    yield "no unsettled field", RecordSet(plan=Plan(batch_size=8, clock_mhz=614.4))


VARIANTS = dict(variants())


# ------------------------------------------------------------------------------------- the numbers are the records' own


def test_the_maps_hold_every_cell_and_nothing_else(run):
    shown = figures(compose(run))
    columns, rows = list(samples.CLOCKS_MHZ), [*samples.BATCH_SIZES, 256]
    for key, value in (
        ("step-time", lambda c: c.step_s / c.batch_size * 1000),
        ("capped-power", lambda c: capped_power(c, run.profile.sensor_window_s, None, 1.0)),
    ):
        (panel,) = shown[key].panels
        cells = {(c.batch_size, c.clock_mhz): value(c) for c in run.profile.measured}
        assert panel.marks[0].values == [[cells.get((row, column)) for column in columns] for row in rows]
        assert panel.x.categories == [f"{clock:g}" for clock in columns]
        assert panel.y.categories == [str(size) for size in rows]


def test_the_maps_mark_the_chosen_point_the_frontier_and_what_does_not_fit(run):
    marks = named(figures(compose(run))["step-time"])
    frame = marks["chosen"]
    assert round(sum(frame.x[:4]) / 4) == samples.CLOCKS_MHZ.index(run.plan.clock_mhz)
    assert round(sum(frame.y[:4]) / 4) == samples.BATCH_SIZES.index(run.plan.batch_size)
    frontier = marks["under 5.2 W"]
    for row, size in enumerate(samples.BATCH_SIZES):
        under_cap = [
            c.clock_mhz for c in run.profile.measured if c.batch_size == size and c.power_peak_w <= samples.CAP_W
        ]
        edge = samples.CLOCKS_MHZ.index(max(under_cap)) + 0.5
        assert frontier.x[2 * row : 2 * row + 2] == [edge, edge]
    assert frontier.x[-2:] == [None, None]  # batch size 256 does not fit at all
    assert list(marks["out of memory"].y) == [6] * 12


def test_unmeasured_cells_stay_blank():
    records = VARIANTS["staircase"]
    time_map = figures(compose(records))["step-time"]
    measured = {(c.batch_size, c.clock_mhz) for c in records.profile.measured}
    (panel,) = time_map.panels
    columns = [float(text) for text in panel.x.categories]
    for size, line in zip((*samples.BATCH_SIZES, 256), panel.marks[0].values, strict=True):
        for clock, value in zip(columns, line, strict=True):
            assert (value is not None) == ((size, clock) in measured)
    stopped = named(time_map)["stopped above the cap"]
    assert len(stopped.x) == len(records.profile.aborted) > 0
    cells = 7 * len(columns)
    blank = cells - len(measured) - len(stopped.x) - len(columns)
    assert f"Blank: not measured ({blank} of {cells})." in next(
        item.note for item in compose(records).sections[0].items if item.title == "Time per sample (ms)"
    )


def test_the_margin_moves_the_frontier(run):
    wide = plan(run.profile, run.efficiency, cap=PowerCap(samples.CAP_W, margin_w=0.5))
    frontier = named(figures(compose(replace(run, plan=wide)))["capped-power"])["under 5.2 W"]
    under_cap = [
        c.clock_mhz for c in run.profile.measured if c.batch_size == 128 and c.power_peak_w + 0.5 <= samples.CAP_W
    ]
    assert frontier.x[10] == samples.CLOCKS_MHZ.index(max(under_cap)) + 0.5


def test_throttled_cells_board_events_and_caveats_are_shown(run):
    held = {"throttled": ("gpu-balanced",), "swapped_bytes": 5 * 2**20}
    first, *others = run.profile.cells
    profile = run.profile.model_copy(update={"cells": (first.model_copy(update=held), *others)})
    event = BoardEvent(time_s=12.0, kind="another writer", text="nvpmodel set max_freq")
    training = run.training.model_copy(update={"board_events": (event,), "reason": "why", "temperature_max_c": 61.5})
    plan = run.plan.model_copy(update={"notes": ("the table is old",)})
    page = compose(replace(run, profile=profile, training=training, plan=plan))
    items = {item.title: item for section in page.sections for item in section.items}
    assert "Ring: the board was throttled or swapping during the measurement." in items["Mean power over 1 s (W)"].note
    assert "throttled by gpu-balanced, 5.0 MiB swapped" in str(items["Mean power over 1 s (W)"].chart)
    assert items["Board events"].rows == [("12 s", "another writer", "nvpmodel set max_freq")]
    assert "Highest temperature 61.5 °C." in items["Power during training"].note
    assert items["Power cap"].text == plan_text.cap_meaning(plan)
    assert items["Outcome"].text.startswith("Target reached (")
    assert items["Caveats"].text == "The table is old."


def test_samples_to_target_show_the_band_and_censored_runs():
    curve = VARIANTS["censored"].efficiency
    chart = figures(compose(VARIANTS["censored"]))["samples-needed"]
    shown, places = named(chart), {point.batch_size: place for place, point in enumerate(curve.points)}
    assert chart.panels[0].x.categories == [str(size) for size in places]
    reached = [p for p in curve.points if p.relative_samples is not None and not p.censored]
    assert shown["every run reached the target"].x == [places[p.batch_size] for p in reached]
    assert shown["every run reached the target"].y == [p.relative_samples for p in reached]
    assert shown["some runs did not reach it"].x == [places[4]]
    assert (shown["no run reached the target"].x, shown["no run reached the target"].y) == ([places[8]], [0])
    (band,) = (mark for mark in chart.marks if isinstance(mark, Area))
    assert (band.low, band.high) == ([p.low for p in curve.points], [p.high for p in curve.points])
    assert band.low[places[8]] is None
    drawing = draw(chart, 556, 380)
    assert drawing.count('opacity="0.2"') == 2  # on both sides of the gap at batch size 8
    assert drawing.count('stroke-width="8"') == 1  # batch size 4 alone, as a stroke


def test_time_to_target_is_the_best_candidate_of_each_batch_size(run):
    chart = figures(compose(run))["time-to-target"]
    shown = named(chart)
    best = {
        size: min(c.predicted_s for c in run.plan.candidates if c.feasible and c.batch_size == size)
        for size in samples.BATCH_SIZES
    }
    assert shown["chosen"].y == [run.plan.predicted_s]
    others = [size for size in samples.BATCH_SIZES if size != run.plan.batch_size]
    assert shown["other batch sizes"].y == [best[size] for size in others]


def test_the_power_trace_and_the_guard(run):
    chart = figures(compose(run))["power-trace"]
    shown = named(chart)
    assert shown["power"].x == [s.time_s for s in run.training.trace]
    assert shown["power"].y == [s.power_w for s in run.training.trace]
    assert shown["clock"].y == [s.setting for s in run.training.trace]
    down, up = run.training.guard
    assert (shown["guard: clock down"].x, shown["guard: clock down"].y) == ([down.time_s], [down.power_w])
    assert (shown["guard: clock up"].x, shown["guard: clock up"].y) == ([up.time_s], [up.power_w])
    assert [(rule.value, rule.label) for rule in chart.panels[0].rules] == [(run.plan.cap_w, "cap 5.2 W")]


def test_the_metric_over_time_or_over_samples(run):
    untimed = [e.model_copy(update={"time_s": None}) for e in run.training.evaluations]
    for training, x in (
        (run.training, [e.time_s for e in run.training.evaluations]),
        (run.training.model_copy(update={"evaluations": tuple(untimed)}), [e.samples for e in untimed]),
    ):
        (panel,) = figures(compose(replace(run, training=training)))["evaluations"].panels
        for mark in panel.marks:  # a line and its dots
            assert (mark.x, mark.y) == (x, [e.metric for e in run.training.evaluations])
        assert [rule.value for rule in panel.rules] == [run.training.target]


def test_the_comparison_with_error_bars(run):
    chart = figures(compose(run))["comparison"]
    times, energies = chart.marks
    rows = [row for row in reversed(run.comparison.rows) if row.time_s is not None]
    assert chart.panels[0].y.categories == [row.rule for row in rows]
    assert (times.lengths, times.errors) == ([row.time_s for row in rows], [row.time_std_s for row in rows])
    assert (energies.lengths, energies.errors) == ([row.energy_j for row in rows], [row.energy_std_j for row in rows])


def test_the_table_of_rules_holds_every_rule(run):
    tables = {i.title: i for section in compose(run).sections for i in section.items if isinstance(i, Table)}
    assert [row[0] for row in tables["All rules"].rows] == [row.rule for row in run.comparison.rows]
    assert tables["All rules"].rows[-1][-1] == "1 of 3 runs did not reach the target"


def items(records):
    return {item.title: item for section in compose(records).sections for item in section.items}


def test_the_algorithm_table_agrees_with_the_summary():
    records = samples.several_algorithms(memory_bytes=40e6)
    shown = items(records)["Training algorithms under the same limits"]
    assert [row[0] for row in shown.rows] == [one.algorithm for one in records.plan.algorithms]
    assert [shown.rows[index][0] for index in shown.marked] == [records.plan.algorithm] == ["backprop"]
    assert "memory limit is 40 MB" in shown.note
    assert "Cost of the training algorithm" not in items(records)
    text = summary(records.plan)
    assert all(row[0] in text for row in shown.rows)
    assert "Training algorithms under the same limits" not in items(samples.run())


def test_the_cost_of_a_forward_gradient_is_told():
    records = samples.several_algorithms(memory_bytes=8e6)
    assert records.plan.algorithm == "forward-gradient"
    shown = items(records)
    text = shown["Cost of the training algorithm"].text
    assert text.startswith("Forward-gradient needs ")
    assert text in summary(records.plan)
    rows = {row[0]: row for row in shown["Training algorithms under the same limits"].rows}
    assert rows["backprop"][-1].startswith("needs ")
    assert rows["forward-gradient"][-1] == ""
    assert "stays under the cap and the memory limit of 8 MB" in render(compose(records))
    assert (
        "No setting stays under the cap and the memory limit, or no run"
        in shown["Predicted time to target per batch size"].note
    )


# ------------------------------------------------------------------------------------------------------------- origins


def origins(records):
    return {i.key: i.origin for section in compose(records).sections for i in section.items if isinstance(i, Figure)}


def test_every_figure_states_its_origin(run, html):
    assert origins(run) == {
        "step-time": "simulated",
        "capped-power": "simulated",
        "samples-needed": "measured",
        "time-to-target": "predicted, step times simulated, samples measured",
        "power-trace": "simulated",
        "evaluations": "simulated",
        "comparison": "simulated",
    }
    shown = re.findall(r'<h3>[^<]*<span class="origin">([^<]+)</span></h3></figcaption>', html)
    assert shown == list(origins(run).values())
    assert "simulated: profile, plan, training, comparison; measured: efficiency" in html


# -------------------------------------------------------------------------------------------------------- what is said


def test_the_headline_of_a_comparison_a_plan_or_neither(run):
    assert headline(run) == (
        "Batch size 16 at 921.6 MHz trains 1.91 times as fast as the best batch at its own clock and 2.24 times as "
        "fast as the largest batch at the fixed clock, under a cap of 5.2 W"
    )
    assert headline(replace(run, comparison=None)) == (
        "Batch size 16 at 921.6 MHz is predicted to train 1.91 times as fast as the best batch at its own clock and "
        "2.24 times as fast as the largest batch at the fixed clock, under a cap of 5.2 W"
    )
    assert "no plan yet" in headline(RecordSet(profile=run.profile))
    assert headline(VARIANTS["no actuator"]).endswith("the best batch at its own clock, under a cap of 190 W")
    kept = [row for row in run.plan.baselines if row.rule == "largest batch, own clock"]
    lone = run.plan.model_copy(update={"baselines": tuple(kept)})
    assert headline(RecordSet(plan=lone)).endswith("is predicted to reach the target soonest, under a cap of 5.2 W")


def test_the_headline_admits_that_nothing_is_gained(run):
    rows = [
        row.model_copy(update={"speed_up": 0.91}) if row.rule == "largest batch, fixed clock" else row
        for row in run.comparison.rows
    ]
    worse = run.comparison.model_copy(update={"rows": tuple(rows)})
    assert "and 0.91 times as fast as the largest batch" in headline(replace(run, comparison=worse))
    rows = [row.model_copy(update={"speed_up": 1.002}) for row in rows]
    even = run.comparison.model_copy(update={"rows": tuple(rows)})
    assert "and as fast as the largest batch" in headline(replace(run, comparison=even))


def test_a_comparison_of_another_point_is_not_in_the_headline(run):
    rows = [r.model_copy(update={"batch_size": 64}) if r.rule == "wattune" else r for r in run.comparison.rows]
    other = run.comparison.model_copy(update={"rows": tuple(rows)})
    assert "is predicted to train" in headline(replace(run, comparison=other))


def test_records_that_do_not_belong_together_are_called_out(run):
    page = compose(replace(run, comparison=run.comparison.model_copy(update={"cap_w": 4.0, "device": "TX2"})))
    assert page.warnings == [
        "These records do not belong together: their device is Jetson Nano 4 GB in the profile record, "
        "Jetson Nano 4 GB in the plan record, TX2 in the comparison record.",
        "These records do not belong together: their cap is 5.2 in the plan record, 4.0 in the comparison record.",
    ]
    assert compose(run).warnings == []


def test_an_exceeded_cap_and_a_missed_target_stand_out(run):
    failed = run.training.model_copy(update={"reached": False, "ended": "budget used up"})
    tiles = {tile.label: tile for tile in compose(replace(run, training=failed)).tiles}
    assert tiles["Target not reached"].warning
    assert tiles["Mean power over 1 s"].warning
    assert not {tile.label: tile for tile in compose(run).tiles}["Time to target"].warning


# ------------------------------------------------------------------------------------------ the file, whatever is there


@pytest.mark.parametrize("name", VARIANTS)
def test_any_subset_of_records_gives_figures_with_something_in_them(name):
    page = compose(VARIANTS[name])
    for chart in figures(page).values():
        for mark in chart.marks:
            assert any(value is not None for value in mark.y) or isinstance(mark, Area), f"an empty mark in {name}"
    assert all(section.items for section in page.sections)
    html = render(page)
    drawings = re.findall(r"<svg [^>]*width.*?</svg>", html, re.DOTALL)
    assert len(drawings) == 2 * len(figures(page))  # for a large and a small screen
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert not re.search(r"\b(nan|inf|None)\b", drawing)
        width, height = map(float, re.search(r'viewBox="0 0 (\d+) (\d+)"', drawing).groups())
        for x, y in re.findall(r'<text x="([-\d.]+)" y="([-\d.]+)"', drawing):
            assert -1 <= float(x) <= width + 1, name
            assert 0 <= float(y) <= height, name


@pytest.mark.parametrize("name", VARIANTS)
def test_every_colour_is_defined_in_both_themes(name):
    light, dark = (files("wattune.reporting") / "page.css").read_text().split("prefers-color-scheme: dark")
    drawings = re.findall(r"<svg.*?</svg>|<ul.*?</ul>", render(compose(VARIANTS[name])), re.DOTALL)
    for colour in set(re.findall(r"var\((--[a-z0-9-]+)\)", "".join(drawings))):
        assert f"{colour}:" in light
        assert f"{colour}:" in dark


def test_the_file_refers_to_nothing_outside_it_and_is_small(run, tmp_path):
    text = write_report(
        [run.profile, run.efficiency, run.plan, run.training, run.comparison], tmp_path / "report.html"
    ).read_text()
    assert len(text) < 500_000
    assert not re.search(r"https?://|\b(src|href)=|@import|url\(|<script", text)
    assert "default-src 'none'" in text


def test_text_from_records_is_escaped(run):
    evil = '</script><img src=x onerror="alert(1)">'
    table = run.profile.model_copy(update={"workload": evil, "device": evil})
    chosen = plan(table, run.efficiency, cap=PowerCap(samples.CAP_W))
    rows = tuple(row.model_copy(update={"rule": evil, "why_not": evil}) for row in run.comparison.rows)
    comparison = run.comparison.model_copy(update={"rows": rows, "method": evil, "device": evil, "workload": evil})
    html = render(compose(RecordSet(profile=table, plan=chosen, comparison=comparison)))
    assert "<img" not in html
    assert evil in unescape(html)
    assert "&lt;/script&gt;" in html.split('data-figure="comparison"')[1].split("</svg>")[0]


def test_a_report_of_a_folder_holds_all_of_it(run, tmp_path):
    for record in (run.profile, run.efficiency, run.plan, run.training, run.comparison):
        record.save(tmp_path / f"{record.name}.json")
    path = write_report(tmp_path, tmp_path / "report.html")
    assert path.read_text() == render(compose(run))


def test_bad_sources_are_refused(run, tmp_path):
    with pytest.raises(RecordError, match="nothing to report on"):
        write_report(tmp_path, tmp_path / "report.html")
    with pytest.raises(RecordError, match="a second profile record"):
        write_report([run.profile, run.profile], tmp_path / "report.html")
    (tmp_path / "other.json").write_text('{"record": "run"}')
    with pytest.raises(RecordError, match=r"other\.json is not a record of the required kind: run; allowed: profile"):
        write_report(tmp_path / "other.json", tmp_path / "report.html")
    (tmp_path / "profile.json").write_text('{"record": "profile", "cells": [')
    with pytest.raises(RecordError, match="not valid JSON"):
        write_report(tmp_path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(OutputError):
        write_report(run.plan, tmp_path / "other.json" / "report.html")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (4.8, "4.80"), (21.0, "21.0"), (99.96, "100"), (154.5, "154"), (12345, "12,345")],
)
def test_cells_show_three_digits(value, text):
    assert number(value) == text


def test_a_report_of_a_long_run_stays_small(run):
    """A browser takes seconds for tens of thousands of elements."""
    first, many = run.training.evaluations[0], 10_000
    evaluations = tuple(
        first.model_copy(update={"samples": 64 * n, "time_s": 2.0 * n, "metric": n % 90 / 100}) for n in range(many)
    )
    page = render(compose(replace(run, training=run.training.model_copy(update={"evaluations": evaluations}))))
    assert len(page) < 600_000
    assert len(re.findall(r"<[a-z]", page)) < 5000

    events = tuple(BoardEvent(time_s=float(n), kind="throttled", text="by heat") for n in range(many))
    actions = tuple(GuardEvent(time_s=float(n), power_w=5.0, action="down", clock_mhz=384.0) for n in range(many))
    caps = tuple(CapInterval(time_s=float(n), cap_w=5.0, pause=None if n % 2 else "0 W") for n in range(many))
    training = run.training.model_copy(update={"board_events": events, "guard": actions, "cap_intervals": caps})
    page = render(compose(replace(run, training=training)))
    assert len(page) < 1_000_000
    assert len(re.findall(r"<[a-z]", page)) < 5000
    assert "The record has another 9,850 rows." in page
