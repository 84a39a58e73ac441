"""What a run of weeks keeps: a bounded number of events and of intervals of its cap."""

from wattune_agent import kept
from wattune_agent.kept import CapRecord, Kept


def test_the_first_and_the_newest_events_are_kept():
    events, half = Kept(), kept.MOST // 2
    for number in range(50 * half):
        events.append({"time_s": number})
    assert [one["time_s"] for one in events.all] == [*range(half), *range(49 * half, 50 * half)]
    assert events.left_out == 48 * half
    assert [one["time_s"] for one in events.since(50 * half - 2)] == [50 * half - 2, 50 * half - 1]
    assert events.since(50 * half) == []
    later = Kept()
    later.load(events.all, events.left_out)
    assert (later.all, later.count) == (events.all, events.count)


def test_joined_intervals_keep_joules_and_pauses():
    """A cap that changes each minute for a week, and that is a pause in every third of them."""
    record = CapRecord(lambda time_s: (time_s / 10, 5 * time_s))
    for minute in range(7 * 24 * 60):
        record.note(60.0 * minute, minute % 7, None, {}, None if minute % 3 else "the cap is 0 W")
        record.close(60.0 * minute + 60)
    end_s = 60.0 * 7 * 24 * 60
    assert len(record.intervals) <= kept.MOST
    assert len(record.intervals) + record.joined == 7 * 24 * 60
    assert sum(one["energy_j"] for one in record.intervals) == 5 * end_s
    assert abs(sum(one["above_cap_s"] for one in record.intervals) - end_s / 10) < 1e-6
    assert record.paused_s(end_s) == end_s / 3
    assert [record.intervals[0]["time_s"], record.intervals[-1]["time_s"]] == [0, end_s - 60]
