"""Runs of a program to its target: learning curves by its steps or its output, estimates, and what it may do wrong."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import replace

import pytest

from wattune.errors import InputError, TargetNotReached, WorkloadError
from wattune.program.learning import learn
from wattune.program.rounds import HOOK
from wattune.program.workload import ProgramWorkload
from wattune.proxy import estimate

TRAIN = f"""
import os, runpy, signal, sys, time
Stamps = runpy.run_path({str(HOOK / "sitecustomize.py")!r})["Stamps"]  # the system may have a sitecustomize of its own
"""
TRAIN += """\
batch = int(sys.argv[1])
stamps = Stamps(os.environ["WATTUNE_STEPS"])
steps = 0


def step(number=1):
    global steps
    for _ in range(number):
        steps += 1
        stamps.stamp(0)


def end(*_):
    open("saved", "w").write(str(steps))
    sys.exit()


def epochs(of=800):
    for _ in range(40):
        step(of // batch)
        yield steps * batch / (8000 * (1 + batch / 64))


signal.signal(signal.SIGTERM, end)
"""
LEARNS = """
for share in epochs():
    print(f"train acc 1.0 val acc: \\x1b[1m{share:.4f}\\x1b[0m")
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A workload by a script; (its lines, changed fields) -> workload."""
    monkeypatch.chdir(tmp_path)

    def made(lines: str = LEARNS, **fields: object) -> ProgramWorkload:
        (tmp_path / "train.py").write_text(TRAIN + lines)
        command = f"{shlex.quote(sys.executable)} -S train.py {{batch_size}} {fields.pop('arguments', '')}"
        given = {"batch_sizes": (8, 16, 32, 64), "target": 0.9, "metric": r"val acc: ([-+.\w]+)", **fields}
        return ProgramWorkload(command, **given)

    return made


def test_samples_are_steps_times_the_batch_size(program, tmp_path):
    told = []
    learning = learn(program(LEARNS + "time.sleep(60)"), 16, on_evaluation=told.append)
    assert learning.ended == "target reached"
    assert [one.samples for one in learning.evaluations] == [800 * number for number in range(1, 13)]
    assert learning.evaluations[-1].metric == pytest.approx(0.96)
    assert tuple(told) == learning.evaluations


def test_at_the_target_the_program_may_save_what_it_has_learned(program, tmp_path):
    begun_s = time.monotonic()
    learn(program(LEARNS.replace("print", "time.sleep(0.05); print") + "time.sleep(60)"), 64)
    assert time.monotonic() - begun_s < 30
    assert int((tmp_path / "saved").read_text()) >= 14400 // 64


def test_samples_may_be_printed(program):
    lines = """
for share in epochs():
    print(f"seen {steps * batch * 2}", f"val acc: {share:.3f}")
"""
    learning = learn(program(lines.replace("epochs()", "epochs(400)"), samples="seen ([0-9]+)"), 8)
    assert learning.samples == learning.evaluations[-1].samples == 2 * 8 * 50 * 21


def test_a_run_that_cannot_win_ends(program):
    learning = learn(program("for share in epochs():\n    print(f'val acc: {share:.3f}')\n    time.sleep(0.2)"), 8,
                     budget_samples=1000)  # fmt: skip
    assert learning.ended == "budget used up"
    assert 1000 < learning.samples < 8000


def test_words_of_a_run(program):
    work = program(arguments="{rate} {seed} {data}", rate="0.1@32,linear", data="all", proxy_data="half")
    assert work.words(8, seed=3)[-4:] == ["8", "0.025", "3", "all"]
    assert work.proxy.words(32)[-1] == "half"
    assert (work.batch_size, work.is_proxy_whole) == (32, False)
    assert program(arguments="{rate}", rate="1e-3@32").words(128)[-1] == "0.002"
    assert work.fingerprint() != work.proxy.fingerprint()


def test_an_estimate_of_a_program(program, tmp_path):
    """Samples grow as 1 + b / 64, known to the nearest epoch of 800; the device takes as long for any batch."""
    work, folder = program(), tmp_path / "curves"
    record = estimate(work, log_step_times={size: (-float(size), 0.01) for size in (8, 16, 32, 64)}, folder=folder)
    assert record.best == 64
    assert record.whole_runs
    curves = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    full = estimate(work, strategy="full", seeds=1, folder=folder)
    expected = {8: 8800, 16: 9600, 32: 11200, 64: 14592}
    assert {one.batch_size: one.samples for one in full.points} == expected
    assert all(one.spacing > 0 for one in full.observations)
    assert all(path.stat().st_mtime_ns == before for path, before in curves.items()), "finished runs are not repeated"


@pytest.mark.parametrize(
    ("lines", "fields", "says"),
    [
        ("print('done')", {}, "no line has the metric; the program's last line: done; the pattern may not fit"),
        ("print('val acc: 0.5')", {}, "no step of the program is seen; the program's last line: val acc: 0.5"),
        ("step()\nprint('val acc: nan')", {}, "every run of"),
        ("step()\nprint('val acc: high')", {}, "the pattern of the metric finds no number: high"),
        ("step()\nprint('val acc: 0.95')", {}, "the first metric of the program is past the target already: 0.95"),
        ("print('val acc: 0.95')", {}, "the target is reached before the first step: 0.95"),
        ("for _ in range(9): print('val acc: 0.5')", {}, "no step of the program is seen: 0.5"),
        (
            "for share in epochs(): print(f'val acc: {0.8 - share / 9}')",
            {},
            "the metric goes away from the target: from 0.7",
        ),
        (
            "for share in epochs(): print(f'val acc: {0.8 - min(share, 0.3) / 9 + steps % 3 / 1000}')",
            {},
            "the metric goes away from the target: from 0.79",
        ),
        ("batch = 16\n" + LEARNS, {}, "the program trains the same at batch sizes"),
        # Further steps until a line is read, as many as the machine makes.
        (
            "step(batch // 8)\nfor number, _ in enumerate(epochs()): print(f'val acc: {number / 30}')",
            {},
            "the program trains the same at batch sizes",
        ),
        ("step()\nprint('val acc: 0.5')\nsys.exit(batch > 32)", {}, "with exit code 1 at batch size 64; its last line"),
        ("step()\nprint('CUDA out of memory')\nsys.exit(1)", {}, "runs out of memory at batch size 64; leave it out"),
        (
            "for share in epochs(): print(f'val acc: {share}', end=' ')",
            {},
            "the program prints several metrics in one line",
        ),
        ("print('seen nan')", {"samples": "seen (.+)"}, "the samples that the program prints: nan; allowed: a finite"),
        ("print('seen')", {"samples": "seen( 1)?"}, "the pattern of the samples finds no number: seen"),
        ("print('acc')", {"metric": "acc( 1)?"}, "the pattern of the metric finds no number: acc"),
        (LEARNS, {"metric": "val acc"}, "the pattern of the metric: val acc; allowed: one group"),
        (LEARNS, {"metric": "val acc ("}, "the pattern of the metric: val acc ("),
        (LEARNS, {"samples": "x"}, "the pattern of the samples"),
        (LEARNS, {"rate": "0.1@32"}, "rate and {rate} in the command: 0.1@32; allowed: both or neither"),
        (LEARNS, {"rate": "0.1@x", "arguments": "{rate}"}, "rate: 0.1@x; allowed: learning rate@batch size"),
        (LEARNS, {"arguments": "{data}"}, "data and {data} in the command"),
        (LEARNS, {"arguments": "{steps}"}, "without {steps}"),
        (LEARNS, {"proxy_data": "x"}, "proxy_data: x; allowed: with data"),
    ],
)
def test_bad_input_is_one_line(program, lines, fields, says):
    with pytest.raises((InputError, TargetNotReached)) as caught:
        estimate(program(lines, **fields))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_small_batch_sizes_may_reach_the_target_at_the_first_metric(program):
    lines = "for share in epochs(): print(f'val acc: {0.9 if batch < 64 else share}')"
    record = estimate(program(lines), strategy="full", seeds=1)
    assert {one.batch_size: one.reached for one in record.observations} == dict.fromkeys((8, 16, 32, 64), True)


def test_a_metric_that_falls_to_its_target(program):
    work = program("for share in epochs(): print(f'val acc: {1 - share:.3f}')", target=0.1, lower_is_better=True)
    assert learn(work, 8).evaluations[-1].metric <= 0.1
    with pytest.raises(WorkloadError, match="leave --lower-is-better out"):
        estimate(replace(program(), lower_is_better=True, target=-1.0))
