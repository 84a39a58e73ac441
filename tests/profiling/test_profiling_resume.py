"""Profiles that were interrupted, of recordings, and of the reference workloads."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from tests.support.profiles import BATCHES, board, workload

from wattune.cap import SensorLimit
from wattune.devices import ReplayDevice, open_device
from wattune.errors import RecordError
from wattune.goal import Goal
from wattune.point import BatchShape
from wattune.profiling import profile
from wattune.profiling.reference_power import measure, references
from wattune.records import EfficiencyPoint, ProfileCell, ProfileTable, SampleEfficiency

CURVE = SampleEfficiency(
    workload="small",
    reference_batch_size=max(BATCHES),
    points=tuple(EfficiencyPoint(batch_size=size, relative_samples=1.0) for size in BATCHES),
)


class Killed(BaseException):
    pass


def kill_after(probes):
    def progress(done, total, what):
        if done >= probes:
            raise Killed

    return progress


@pytest.mark.slow
@pytest.mark.parametrize("cap_w", [None, 4.5])
def test_an_interrupted_profile_ends_as_if_it_had_not_been(tmp_path, cap_w):
    path = tmp_path / "partial.json"

    def measure(progress=None, seed=1):
        device = board(noise_w=0.03, seed=seed)
        return profile(
            device, workload(), limit=SensorLimit(cap_w), reference=False, partial=path, progress=progress
        ), device

    whole, _ = measure()
    assert path.is_file()  # the caller's to remove
    path.unlink()
    for probes in (0, 1, 5):
        with pytest.raises(Killed):
            measure(kill_after(probes))
    heard = []
    again, device = measure(lambda *now: heard.append(now))
    assert again.cells == whole.cells
    assert again.aborted == whole.aborted
    assert again.cost == whole.cost
    # Everything is there: nothing is measured once more, and the board is where it was left.
    once_more, other = measure()
    assert once_more.cells == whole.cells
    assert other.now_s() == device.now_s()


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"limit": SensorLimit(4.5)},
        {"limit": SensorLimit(4.5), "strategy": "guided", "goal": Goal("energy", max_slowdown=0.1)},
        {"limit": SensorLimit(4.5), "strategy": "guided", "strict": True, "efficiency": CURVE},
    ],
)
def test_resuming_uses_the_stored_measurements(tmp_path, asked):
    """A simulated board with the same seed measures the same again, so the stored figures are altered.

    The last line is as a crash leaves it, and the file is only ever appended to.
    """
    path = tmp_path / "partial.json"
    with pytest.raises(Killed):
        profile(board(), workload(), reference=False, partial=path, progress=kill_after(3), **asked)
    first, *notes = map(json.loads, path.read_text().splitlines())
    kept = next(note for note in notes if note["cell"])
    kept["cell"]["step_s"] *= 1.000123
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, *notes)) + '{"cell": {"batch_si')
    sizes = []
    asked = {**asked, "progress": lambda *_: sizes.append(path.stat().st_size)}
    found = profile(board(), workload(), reference=False, partial=path, **asked)
    notes = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert kept["cell"]["step_s"] in [note["cell"]["step_s"] for note in notes if note["cell"]]
    assert found.cost.probes == len(notes)
    assert sizes[1:] == sorted(sizes[1:])
    # A guided profile may measure a cell again, and tells the mean.
    assert asked.get("strategy") == "guided" or kept["cell"]["step_s"] in [cell.step_s for cell in found.cells]


def test_a_damaged_line_between_others_is_named(tmp_path):
    path = tmp_path / "partial.json"
    with pytest.raises(Killed):
        profile(board(), workload(), reference=False, partial=path, progress=kill_after(3))
    first, second, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join((first, second[1:], *rest)))
    with pytest.raises(RecordError, match=r"partial.json, line 2, is not valid JSON: .*; remove the file"):
        profile(board(), workload(), reference=False, partial=path)


def test_other_arguments_begin_anew_and_say_so(tmp_path):
    path = tmp_path / "partial.json"
    with pytest.raises(Killed):
        profile(board(), workload(), limit=SensorLimit(4.5), reference=False, partial=path, progress=kill_after(3))
    before = path.read_text()
    device = board()
    with pytest.warns(UserWarning, match=r"differs in cap_w \(4.5, not 4.4\): they are kept in .*partial-2.json"):
        found = profile(device, workload(), limit=SensorLimit(4.4), reference=False, partial=path)
    assert (tmp_path / "partial-2.json").read_text() == before
    assert found.cells == profile(board(), workload(), limit=SensorLimit(4.4), reference=False).cells
    assert found.cost.time_s == pytest.approx(device.now_s())


@pytest.mark.slow
def test_the_reference_workloads_are_measured_at_every_clock():
    device = board()
    found = profile(device, workload(batch_sizes=(8,)))
    powers = found.reference.powers
    names = {w.name for w in references("fp32")}
    (mine,) = {p.workload for p in powers} - names  # the workload itself: no reference may be as heavy
    assert mine.startswith(found.workload)
    for name in (*names, mine):
        own = [p for p in powers if p.workload == name]
        assert tuple(p.clock_mhz for p in own) == device.knobs[0].values
        assert {p.batch_size for p in own} == ({8} if name == mine else {128})
        assert not any(p.stopped for p in own)
        # Rising but for the sensor's smallest step.
        assert all(a.power_peak_w <= b.power_peak_w + 0.041 for a, b in pairwise(own))
    # What they cost stands apart from the 12 cells of the workload.
    assert found.cost.probes == 12
    assert found.reference.cost.probes == 12 * (len(names) + 1)
    assert found.cost.time_s == pytest.approx(device.now_s())


@pytest.mark.slow
def test_every_profile_of_a_board_has_the_same_references():
    noisy = [open_device("sim:jetson-nano", seed=seed) for seed in (1, 2)]
    first, second = (profile(device, workload(batch_sizes=(8,)), limit=SensorLimit(4.5)) for device in noisy)
    assert first.cells != second.cells
    assert first.reference == second.reference


@pytest.mark.slow
def test_references_that_a_board_has_measured_are_kept_until_a_cap_is_higher(tmp_path):
    def measured(device, cap_w):
        limit = SensorLimit(cap_w, window_s=1.0)
        shape, report = BatchShape(8, 8), lambda *_: None
        return measure(device, workload(), "backprop", shape, report, limit=limit, folders=[tmp_path])

    first = measured(board(), 3.9)
    device = open_device("sim:jetson-nano", seed=7)
    assert measured(device, 3.8) == first
    more = measured(device, 4.2)
    steps = {power.workload: power.clock_mhz for power in first.powers if power.stopped}
    assert steps
    assert all(not p.stopped for p in more.powers if p.power_peak_w < 4.2 and p.clock_mhz <= steps[p.workload])
    assert all(p in more.powers for p in first.powers if not p.stopped)


def test_references_of_a_board_are_kept_in_the_first_folder_that_is_writable(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")

    def measured(*folders):
        shape, report, limit = BatchShape(8, 8), lambda *_: None, SensorLimit(3.6, window_s=1.0)
        return measure(board(), workload(), "backprop", shape, report, limit=limit, folders=folders)

    first = measured(blocked / "wattune", tmp_path / "kept")
    assert [path.name.split("-")[0] for path in (tmp_path / "kept").iterdir()] == ["references"]
    assert first.powers == measured(blocked).powers  # kept nowhere, and measured all the same


def test_references_kept_from_a_higher_cap_lead_to_no_probe_far_above_a_lower_one(tmp_path):
    begun: list[float] = []

    def measured(cap_w, until=1000):
        def report(name, point):
            begun.append(point.knobs.first)
            if len(begun) > until:
                raise Killed

        limit, shape = SensorLimit(cap_w, window_s=1.0), BatchShape(8, 8)
        return measure(board(), workload(), "backprop", shape, report, limit=limit, folders=[tmp_path])

    with pytest.raises(Killed):
        measured(6.5, until=10)
    missing_mhz = begun[-1]
    found = measured(4.3)
    first = [power for power in found.powers if power.workload == found.powers[0].workload]
    assert max(power.clock_mhz for power in first) < missing_mhz
    assert not any(power.stopped for power in first)
    assert max(power.power_mean_w for power in first) > 4.3
    assert found.cost.cap_w is None  # seconds above two caps are seconds above neither


@pytest.mark.slow
def test_references_stop_climbing_at_the_cap():
    found = profile(board(), workload(batch_sizes=(8,)), limit=SensorLimit(4.5))
    free = profile(board(), workload(batch_sizes=(8,)))
    for name in {w.name for w in references("fp32")}:
        own = [p for p in found.reference.powers if p.workload == name]
        assert [p.stopped for p in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].power_peak_w > 4.5
        every = [p for p in free.reference.powers if p.workload == name]
        assert len(own) == 1 + sum(p.power_peak_w <= 4.5 for p in every)


@pytest.mark.slow
def test_a_reference_that_does_not_fit_is_halved():
    made = board().board.memory
    size_mib = made.system_mib + made.context_mib + 150
    found = profile(board(memory={"size_mib": size_mib}), workload(batch_sizes=(8,)), limit=SensorLimit(3.9))
    sizes = {p.workload: p.batch_size for p in found.reference.powers}
    assert any(size < 128 for size in sizes.values())
    assert all(size in (128, 64, 32, 16, 8, 4, 2, 1) for size in sizes.values())


def test_references_compute_in_the_workloads_data_type():
    assert {w.data_type for w in references("fp16")} == {"fp16"}


# --------------------------------------------------------------------------------------------------------- recordings


def recorded(**changes) -> ProfileTable:
    cells = tuple(
        ProfileCell(batch_size=b, power_limit_w=w, step_s=b / w, power_mean_w=w, power_peak_w=w + 1, steps=5)
        for b in (*BATCHES, 256)
        for w in (10.0, 15.0)
    )
    return ProfileTable(**{"device": "elsewhere", "workload": "theirs", "cells": cells, **changes})


def test_recordings_of_other_batches_or_algorithms_are_refused():
    with pytest.raises(RecordError, match="no batch size"):
        profile(ReplayDevice(recorded()), workload(batch_sizes=(5,)))
    with pytest.raises(RecordError, match="algorithm"):
        profile(ReplayDevice(recorded(algorithm="async-fgd")), workload())
    found = profile(ReplayDevice(recorded()), workload())  # which has a key
    with pytest.raises(RecordError, match="input_shape"):
        profile(ReplayDevice(found), workload(input_shape=(3, 16, 16)))
