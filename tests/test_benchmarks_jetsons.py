"""The judge of the search on recorded boards takes the table of any board, and tables of batch sizes and limits."""

import math
from itertools import product

import pytest
from benchmarks import jetsons
from benchmarks.script import command as script


@pytest.fixture
def made(tmp_path):
    """A folder with the table of a made-up board."""
    lines = ["batch_size,clock_mhz,memory_clock_mhz,cpu_clock_mhz,step_s,power_w"]
    for gpu, memory, cpu in product((200, 400, 800), (800, 1600), (600, 1200)):
        step_s, power_w = 100 / gpu + 100 / memory + 50 / cpu, 2 + gpu / 200 + memory / 800 + cpu / 600
        lines.append(f"8,{gpu},{memory},{cpu},{step_s},{power_w}")
    (tmp_path / "T.csv").write_text("\n".join(lines))
    return tmp_path


def test_a_script_is_judged_on_the_table_of_a_board(made):
    found = script.case((str(made), "T.csv", 4, 0))
    assert 0 <= found["loss"]["300"] < found["loss"]["60"]
    assert found["over_gpu_alone"] >= 1
    assert not found["pick_above"]


def test_a_table_of_another_board_is_judged(made):
    recording = jetsons.load(made, "T.csv")
    assert {tuple(point.knobs.values())[1:] for point in recording.first_alone} == {(1600, 1200)}
    assert len(recording.truth) == 12
    cap_w = recording.caps_w(jetsons.CAPS)[-1]
    row = jetsons.score(recording, cap_w, jetsons.ours(recording, cap_w, 0))
    assert math.isfinite(row["regret"])
    assert recording.best_s(cap_w, recording.first_alone) == recording.best_s(cap_w)  # the highest cap allows all
    short, long = (jetsons.training(recording, cap_w, seconds) for seconds in (60.0, 36_000.0))
    assert 0 <= long["regret"] <= long["loss"] < short["loss"]


def test_batch_sizes_at_power_limits_are_judged_by_the_time_to_the_target(tmp_path):
    power = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
    power += [f"cifar100,net,{b},adam,{w},{100 / b**0.5 * 100 / w},{w - 5}" for b in (16, 64, 256) for w in (100, 150)]
    (tmp_path / "summary_power_gpu.csv").write_text("\n".join(power) + "\n")
    lines = ["dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch"]
    for size, epochs in ((16, 20), (64, 24), (256, 90)):
        lines += [f"cifar100,net,{size},adam,1e-3,{run},0.5,{epochs}" for run in range(4)]
    (tmp_path / "summary_train.csv").write_text("\n".join(lines) + "\n")
    [recording] = jetsons.zeus(tmp_path).values()
    assert recording.caps_w(3) == [100.0, 125.0, 150.0]
    best = min(recording.truth, key=lambda point: recording.truth[point].step_s)
    assert (best.batch_size, best.knobs["power_limit_w"]) == (64, 150.0)
    rows = jetsons.cases([recording])
    assert min(row["regret"] for row in rows) == 0.0
    assert max(row["regret"] for row in rows) == 0.5  # at a limit of 100 W where 150 W has too little room
    assert jetsons.figures(rows)["wattune"]["without_a_pick"] == 0
