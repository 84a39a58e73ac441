"""Caps that change: traces, files that are watched, callables, and what each says of the caps to plan for."""

from __future__ import annotations

import math
import os
import threading
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.cap import PowerCap
from wattune.cap_source import LEVELS, CalledCap, CapTrace, LowestCap, WatchedCap, cap_of, check_scale, parse_range
from wattune.errors import InputError
from wattune.records import Supply
from wattune.watched_file import Content, WatchedFile


def written(folder: Path, text: str, name: str = "caps.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_cap_holds_until_the_next_row(tmp_path):
    trace = CapTrace.load(written(tmp_path, "seconds,watts\n0,6\n60,4.5W\n\n120,\n180,0\n240, 5\n"))
    assert [trace.watts(t) for t in (0, 59.9, 60, 119, 120, 200, 240, 1e9)] == [6, 6, 4.5, 4.5, 0, 0, 5, 5]
    assert [trace.next_change_s(t) for t in (0, 60, 120, 200, 240)] == [60, 120, 240, 240, None]
    assert trace.shares == pytest.approx({0.0: 0.4, 4.5: 0.2, 5.0: 0.2, 6.0: 0.2})
    assert trace.highest() == PowerCap(6.0)
    assert trace.is_announced


def test_moments_on_the_clock_count_from_the_first_row(tmp_path):
    text = "time,watts\n2025-06-01T08:00Z,6\n2025-06-01T11:00:00+02:00,4\n2025-06-01T10:30:00+00:00,0\n"
    trace = CapTrace.load(written(tmp_path, text))
    assert trace.times_s == (0, 3600, 9000)
    assert trace.elapsed_s(datetime(2025, 6, 1, 9, tzinfo=timezone.utc)) == 3600
    with pytest.raises(InputError, match="begins after the run: 120 s later"):
        trace.watts(-120)
    newest_first = (
        '[{"time": "2025-06-01T09:00Z", "milliwatts": 4000}, {"time": "2025-06-01T08:00Z", "milliwatts": 6000}]'
    )
    caps = cap_of(str(written(tmp_path, newest_first, "caps.json")))
    assert (caps.times_s, caps.caps_w) == ((0, 3600), (6, 4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seconds,watts\n", "has no rows"),
        ("0,6\n60,4\n", "no column of time and watts; allowed: seconds or time, and watts"),
        ("seconds,watts\n0,6\n60,4\n30,5\n", "line 4: the time is not after that of the row before: 30"),
        ("seconds,watts\n10,6\n", "nothing about the time before its first row: 10"),
        ("seconds,watts\n0,6\n,4\n", "line 3: seconds: empty"),
        ("seconds,watts\n0,-6\n", "line 2: watts: -6; allowed: watts of 0 or more"),
        ("seconds,watts\n0,six\n", "line 2: watts: six"),
        ("seconds,watts\nnan,6\n", "seconds: nan"),
        ("time,watts\nyesterday,6\n", "time: yesterday; allowed: ISO 8601"),
        ("time,watts\n2025-06-01T08:00Z,6\n2025-06-01T07:00Z,4\n2025-06-01T09:00Z,4\n", "line 3: the time is not"),
    ],
)
def test_a_malformed_trace_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as refused:
        CapTrace.load(written(tmp_path, text))
    assert "\n" not in str(refused.value)
    assert "caps.csv" in str(refused.value)


@given(
    st.lists(st.floats(0.5, 1e5), min_size=1, max_size=12),
    st.lists(st.sampled_from([0.0, 3.0, 4.5, 6.0]), min_size=12, max_size=12),
    st.floats(0, 2e6),
)
def test_the_next_change_is_where_the_cap_changes(spans_s, caps_w, time_s):
    times_s = [math.fsum(spans_s[:index]) for index in range(len(spans_s))]
    trace = CapTrace(times_s=tuple(times_s), caps_w=tuple(caps_w[: len(spans_s)]))
    assert sum(trace.shares.values()) == pytest.approx(1)
    assert list(trace.shares) == sorted(set(trace.caps_w))
    following = trace.next_change_s(time_s)
    now_w = trace.watts(time_s)
    if following is None:
        assert all(trace.watts(t) == now_w for t in times_s if t > time_s)
    else:
        assert following > time_s
        assert trace.watts(following) != now_w
        assert all(trace.watts(t) == now_w for t in times_s if time_s <= t < following)


def test_a_watched_file_is_read_again_when_it_changes(tmp_path):
    cap = WatchedCap(path=written(tmp_path, "6W\n", "cap"))
    assert cap.watts(0) == 6
    written(tmp_path, "4500mW\n", "cap")
    assert cap.watts(1) == 4.5
    written(tmp_path, "0\n", "cap")
    assert cap.watts(2) == 0
    assert cap.next_change_s(2) is None
    assert not cap.is_announced


@pytest.mark.parametrize("content", ["", "six\n", "-3\n", "nan\n", "4 5\n", "\xff"])
def test_content_that_is_no_cap_leaves_the_last_one(tmp_path, content):
    cap = WatchedCap(path=written(tmp_path, "6\n", "cap"))
    (tmp_path / "cap").write_bytes(content.encode("latin-1"))
    assert cap.watts(1) == 6
    assert str(tmp_path / "cap") in cap.problem.text
    (tmp_path / "cap").unlink()
    assert cap.watts(2) == 6
    assert "cannot be read" in cap.problem.text
    written(tmp_path, "5\n", "cap")
    assert cap.watts(3) == 5
    assert cap.problem is None


def test_half_a_number_is_not_taken_for_a_cap(tmp_path):
    cap = WatchedCap(path=written(tmp_path, "6\n", "cap"))
    written(tmp_path, "1", "cap")  # the first byte of 12.5
    assert cap.watts(1) == 6
    written(tmp_path, "12.5", "cap")
    assert cap.watts(2) == 6
    assert cap.watts(3) == 12.5  # nothing came after it


def test_a_watched_file_needs_a_cap_at_the_beginning(tmp_path):
    assert cap_of(f"watch:{written(tmp_path, '5', 'cap')}").watts(0) == 5
    with pytest.raises(InputError, match="one number of watts"):
        cap_of(f"watch:{tmp_path / 'missing'}")
    with pytest.raises(InputError, match="one number of watts"):
        cap_of(f"watch:{written(tmp_path, 'x', 'cap')}")


class Rewritten:
    """A watched file, and its clock."""

    def __init__(self, path, **options):
        self.path, self.now_s = path, 0.0
        path.write_text("6\n")
        file = WatchedFile(path, 60.0, clock=lambda: self.now_s)
        self.cap = WatchedCap(path=path, file=file, **options)

    def write(self, watts, *, after_s):
        self.now_s += after_s
        self.path.write_text(f"{watts}\n")
        os.utime(self.path, ns=(0, int(1e9 * self.now_s)))
        return self.cap.watts(0.0)


def test_a_file_that_was_being_rewritten_and_is_not_any_more_counts_as_its_lowest_cap(tmp_path):
    file = Rewritten(tmp_path / "cap")
    assert [file.write(watts, after_s=10.0) for watts in (5, 4.2, 7, 7)] == [5, 4.2, 7, 7]
    file.now_s += 60.0
    assert file.cap.watts(0.0) == 7
    file.now_s += 1.0
    assert file.cap.watts(0.0) == 4.2
    kind, text = file.cap.problem
    assert (kind, text) == ("cap stale", f"{file.path} has not been rewritten for 60 s; its lowest cap of 4.2 W holds")
    assert file.write(6.5, after_s=100.0) == 6.5
    assert file.cap.problem is None


def test_a_stale_file_with_a_range_counts_as_the_least_of_it(tmp_path):
    file = Rewritten(tmp_path / "cap", range_w=(3.0, 9.0))
    file.write(5, after_s=10.0)
    file.now_s += 61.0
    assert file.cap.watts(0.0) == 3.0


def test_a_file_that_is_written_now_and_then_is_never_stale(tmp_path):
    file = Rewritten(tmp_path / "cap")
    file.now_s += 1e6
    assert file.cap.watts(0.0) == 6  # it was never rewritten
    assert [file.write(watts, after_s=3600.0) for watts in (5, 4, 7)] == [5, 4, 7]
    file.now_s += 3600.0
    assert file.cap.watts(0.0) == 7
    assert file.cap.problem is None


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    cap = WatchedCap(path=written(tmp_path, "6\n", "cap"))
    (tmp_path / "cap").unlink()
    os.mkfifo(tmp_path / "cap")
    assert cap.watts(1) == 6
    assert "is not a regular file" in cap.problem.text
    with pytest.raises(InputError, match="not a regular file"):
        WatchedCap(path=tmp_path / "cap")
    with pytest.raises(InputError, match="not a regular file"):
        WatchedCap(path=Path("/dev/zero"))


def test_a_file_that_does_not_answer_is_waited_for_once(tmp_path, monkeypatch):
    cap, answers, looks = WatchedCap(path=written(tmp_path, "6\n", "cap")), threading.Event(), []

    def hung(path):
        looks.append(path)
        assert answers.wait(60)
        return Content("4\n", None, (1, 1))

    monkeypatch.setattr("wattune.watched_file._content", hung)
    monkeypatch.setattr("wattune.watched_file.ANSWER_WITHIN_S", 0.01)
    assert [cap.watts(0.0) for _ in range(1000)] == [6.0] * 1000
    assert len(looks) == 1
    assert cap.problem == ("cap unread", f"{tmp_path / 'cap'} does not answer; the last cap of 6 W holds")
    answers.set()
    while cap.watts(0.0) != 4.0:
        pass
    assert cap.problem is None


def test_several_caps_are_their_minimum():
    first = CapTrace(times_s=(0.0, 10.0, 30.0), caps_w=(6.0, 4.0, 7.0))
    second = CapTrace(times_s=(0.0, 20.0), caps_w=(5.0, 0.0), why="night")
    cap = LowestCap(sources=(first, second))
    assert [cap.watts(time_s) for time_s in (0, 10, 20, 30)] == [5, 4, 0, 0]
    assert [cap.next_change_s(time_s) for time_s in (0, 10, 20, 30)] == [10, 20, 30, None]
    assert cap.is_announced
    assert cap.highest() == PowerCap(5.0)
    assert sum(cap.shares.values()) == pytest.approx(1.0)
    # What is announced is known together: 5 W until 10 s, 4 W until 20 s, then nothing, as long as before.
    assert cap.shares == pytest.approx({0.0: 0.5, 4.0: 0.25, 5.0: 0.25})
    assert not LowestCap(sources=(first, cap_of(lambda time_s: 3.0))).is_announced


def test_times_without_watts_hold_at_either_side():
    times = CapTrace(times_s=(0.0, 10.0), caps_w=(math.inf, 0.0))
    at_supply = CapTrace(PowerCap(side="supply"), caps_w=(12.0,))
    assert LowestCap(sources=(times, at_supply)).form.side == "supply"
    with pytest.raises(InputError, match="at the sensor and at the supply"):
        LowestCap(sources=(CapTrace(caps_w=(9.0,)), at_supply))


def seconds_of_a_day(rows):
    caps_w = tuple(5 + index % 977 / 500 for index in range(rows))
    return CapTrace(times_s=tuple(map(float, range(rows))), caps_w=caps_w)


def test_a_trace_of_each_second_of_a_day_is_walked_through():
    trace, time_s, changes = seconds_of_a_day(86400), 0.0, 0  # at a cost that is quadratic, this takes hours
    while (change_s := trace.next_change_s(time_s)) is not None:
        assert trace.watts(change_s) != trace.watts(time_s)
        time_s, changes = change_s, changes + 1
    assert changes == 86399
    assert sum(trace.shares.values()) == pytest.approx(1.0)


def test_many_caps_are_planned_for_by_levels_below_them():
    trace = seconds_of_a_day(5000)
    assert len(trace.shares) == LEVELS
    assert sum(trace.shares.values()) == pytest.approx(1.0)
    assert trace.highest() == PowerCap(max(trace.caps_w))
    assert all(trace.level_w(cap_w) <= cap_w for cap_w in trace.caps_w)


def test_a_callable_is_a_cap():
    cap = cap_of(lambda time_s: 6.0 if time_s < 10 else None)
    assert (cap.watts(0), cap.watts(10), cap.next_change_s(0)) == (6.0, 0.0, None)
    assert cap.shares == {6.0: 1.0}
    for wrong in (-1.0, math.nan, math.inf, "6", True):
        with pytest.raises(InputError, match="what cap_w returned"):
            cap_of(lambda time_s, wrong=wrong: wrong).watts(0)


def test_a_range_stands_for_caps_that_are_not_known(tmp_path):
    cap = cap_of(lambda time_s: 5.0, range_w=parse_range("4W..6W"))
    assert cap.shares == pytest.approx(dict.fromkeys([4, 4.25, 4.5, 4.75, 5, 5.25, 5.5, 5.75, 6], 1 / 9))
    for text in ("6W..4W", "4W", "4W..", "-1..3", "4..nan"):
        with pytest.raises(InputError, match="cap_range"):
            parse_range(text)
    for constant in (5.0, "5W", written(tmp_path, "seconds,watts\n0,5\n")):
        with pytest.raises(InputError, match="with watch:FILE or a callable"):
            cap_of(constant, range_w=(4.0, 6.0))
    with pytest.raises(InputError, match="such as 4W"):
        CalledCap(range_w=(6.0, 4.0))


def test_a_constant_cap_stays_one(tmp_path):
    assert cap_of("4.5W") == cap_of(4.5) == PowerCap(4.5)
    assert cap_of(None) == cap_of("none") == PowerCap()
    trace = CapTrace()
    assert cap_of(trace) is trace
    with pytest.raises(InputError, match="such as 4"):
        cap_of("caps.txt")


def test_a_cap_of_nothing_at_all_cannot_be_planned_for():
    with pytest.raises(InputError, match="0 W all the time"):
        CapTrace().highest()


def test_the_limit_at_the_sensor_is_that_of_a_constant_cap(tmp_path):
    supply, path = Supply(other_w=2.0, efficiency=0.8), written(tmp_path, "seconds,watts\n0,12\n9,3\n")
    trace = cap_of(f"{path}@supply").with_form(PowerCap(margin_w=0.5, window=2.0))
    assert trace.limit(12.0, supply, 0.4) == PowerCap(12.0, "supply", 0.5, None, 2.0).at_sensor(supply, 0.4)
    assert trace.limit(3.0, supply, 0.4) is None  # 0.4 W at the sensor, all of it margin
    assert trace.limit(2.0, supply, 0.4) is None  # the rest of the board uses it up
    assert trace.limit(0.0, supply, 0.4) is None
    with pytest.raises(InputError, match="a meter at the supply"):
        trace.limit(12.0, None, 0.4)
    with pytest.raises(InputError, match="the cap's window"):
        trace.limit(12.0, supply, 3.0)
    at_the_sensor = cap_of(path).with_form(PowerCap(margin_w=3.0))
    assert at_the_sensor.limit(3.0, supply, 0.4) is None


FIVE_W = 5.0


@pytest.mark.parametrize(
    "cap", ["none", "10W", "499W", "4.5W@supply", CapTrace(caps_w=(4.5, 4500.0), times_s=(0.0, 1.0)), CapTrace()]
)
@pytest.mark.parametrize("highest_w", [FIVE_W, None])
def test_a_cap_that_does_not_limit_the_board_is_no_slip(cap, highest_w):
    check_scale(cap_of(cap), highest_w)


@pytest.mark.parametrize(
    ("cap", "said"),
    [
        ("4500W", "4500 W is 900 times what this board draws at most; 4500mW?"),
        ("4.5kW@supply", "4500 W is 900 times what this board draws at most; 4500mW?"),
        ("500W", "500 W is 100 times what this board draws at most; 500mW?"),
        (lambda time_s: 4939.0, "4939 W, the lowest cap of a callable, is 988 times .*; are these mW?"),
    ],
)
def test_watts_that_are_milliwatts_are_refused(cap, said):
    check_scale(cap_of(cap), None)
    with pytest.raises(InputError, match=said.replace("?", r"\?")):
        check_scale(cap_of(cap), FIVE_W)


def test_a_file_of_milliwatts_is_refused_unless_one_of_its_caps_limits_the_board(tmp_path):
    file = tmp_path / "mw.csv"
    file.write_text("seconds,watts\n0,4939\n60,\n120,6629\n")
    with pytest.raises(InputError, match=r"^4939 W, the lowest cap of .*mw\.csv, is 988 times .*; are these mW\?$"):
        check_scale(cap_of(file), FIVE_W)
    file.write_text("seconds,watts\n0,4939\n60,4.5\n120,6629\n")
    check_scale(cap_of(file), FIVE_W)
