"""The judge of the search on recorded boards takes the table of any board."""

import math
from itertools import product

from benchmarks import jetsons


def test_a_table_of_another_board_is_judged(tmp_path):
    lines = ["batch_size,clock_mhz,memory_clock_mhz,cpu_clock_mhz,step_s,power_w"]
    for gpu, memory, cpu in product((200, 400, 800), (800, 1600), (600, 1200)):
        step_s, power_w = 100 / gpu + 100 / memory + 50 / cpu, 2 + gpu / 200 + memory / 800 + cpu / 600
        lines.append(f"8,{gpu},{memory},{cpu},{step_s},{power_w}")
    (tmp_path / "T.csv").write_text("\n".join(lines))
    recording = jetsons.load_table(tmp_path / "T.csv")
    assert recording.top_of_others == {"memory_clock_mhz": 1600, "cpu_clock_mhz": 1200}
    assert len(recording.truth) == 12
    row = jetsons.case(("wattune", tmp_path, "T.csv", jetsons.CAPS - 1, 0))
    assert math.isfinite(row["regret"])
    assert row["oracle_over_gpu_clock_alone"] == 1.0  # the highest cap allows all clocks
