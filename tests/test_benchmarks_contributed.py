"""The table of contributed boards: measured files only, and recorded rows that are computed, smoothed and marked."""

import json

import pytest
from benchmarks.contributed import contributions, markdown, recorded_row
from tests.support.report_records import contribution

from wattune.errors import InputError
from wattune.records import provenance


def test_measured_files_are_rows_and_simulated_ones_are_not(tmp_path):
    simulated = contribution()
    measured = simulated.model_copy(update={"provenance": provenance("measured")})
    simulated.save(tmp_path / "a.json")
    measured.save(tmp_path / "b.json")
    records = contributions(tmp_path)
    assert records == [measured]
    rows = markdown(records, {"rows": []}).splitlines()[2:]
    assert len(rows) == 1
    assert f"| {measured.board.name} | MAXN | reference-wide-cnn | 128 | 12: 76.8 MHz to 921.6 MHz |" in rows[0]
    assert rows[0].endswith("| measured |")
    assert contributions(tmp_path / "nothing") == []


def test_a_recorded_row_is_that_of_the_highest_other_clocks(tmp_path):
    # Time falls with the clock and power rises with its square; the other clocks' rows are to be ignored.
    clocks_mhz = (114.75, 318.75, 522.75, 726.75, 828.75, 1032.75, 1134.75, 1236.75, 1300.5)
    ran_at = {828.75: 854.25, 1134.75: 1236.75}
    pairs = {}
    for mhz in clocks_mhz:
        actual = ran_at.get(mhz, mhz)
        step_s, power_w = 100 / actual, 3 + 8e-6 * actual**2
        pairs[f"2035200,{round(mhz * 1e6)},1866000000"] = [step_s, step_s * power_w]
        pairs[f"345600,{round(mhz * 1e6)},1866000000"] = [9.0, 1.0]
    (tmp_path / "IMDB.json").write_text(json.dumps(pairs))
    row = recorded_row("IMDB", tmp_path)
    assert (row.workload, row.batch_size, row.settings) == ("LSTM", 8, len(clocks_mhz) - 1)
    assert row.speed_up == pytest.approx(1300.5 / 114.75, rel=0.02)
    assert row.highest_w == pytest.approx(3 + 8e-6 * 1300.5**2, rel=0.05)
    # Energy (3 + a f^2) / f is least at the square root of 3 / a: 612 MHz.
    assert row.thrifty in ("522.75 MHz", "726.75 MHz")
    with pytest.raises(InputError, match="no such recording"):
        recorded_row("CIFAR10", tmp_path)
