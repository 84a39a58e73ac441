"""The operating point: one spelling, flat in records, ordered, hashable, with any number of knobs."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.point import KNOBS, BatchShape, Knobs, OperatingPoint

knobs = st.dictionaries(st.sampled_from(list(KNOBS)), st.floats(1, 1e4)).map(Knobs)
shapes = st.integers(1, 64).flatmap(lambda micro: st.integers(1, 8).map(lambda n: BatchShape(micro * n, micro)))
points = st.builds(OperatingPoint, shapes, knobs)


@given(points)
def test_the_flat_fields_give_the_point_again(point):
    fields = point.fields()
    batch_size, micro_batch_size = fields.pop("batch_size"), fields.pop("micro_batch_size", None)
    assert OperatingPoint.of(batch_size, micro_batch_size, **fields) == point
    assert hash(OperatingPoint.of(batch_size, micro_batch_size, **fields)) == hash(point)


@given(st.lists(points))
def test_points_sort_by_shape_then_by_knobs(several):
    ordered = sorted(several)
    assert [p.shape for p in ordered] == sorted(p.shape for p in several)
    for low, high in pairwise(ordered):
        assert not high < low


def test_knobs_keep_one_order_however_they_were_given():
    one, other = Knobs(power_limit_w=120, clock_mhz=900), Knobs({"clock_mhz": 900}, power_limit_w=120)
    assert one == other == {"clock_mhz": 900, "power_limit_w": 120}
    assert list(one) == ["clock_mhz", "power_limit_w"]
    assert one.replace(clock_mhz=600)["clock_mhz"] == 600


def test_an_unknown_knob_is_refused():
    with pytest.raises(KeyError):
        Knobs(fan_speed=3)


@pytest.mark.parametrize(
    ("point", "text"),
    [
        (OperatingPoint.of(32, clock_mhz=612), "batch size 32 at 612 MHz"),
        (
            OperatingPoint.of(32, 8, clock_mhz=612, memory_clock_mhz=1600),
            "batch size 32 (micro-batches of 8) at 612 MHz, memory 1600 MHz",
        ),
        (OperatingPoint.of(8, power_limit_w=120), "batch size 8 at power limit 120 W"),
        (OperatingPoint.of(8, cpu_cores=4), "batch size 8 at 4 CPU cores"),
        (OperatingPoint.of(8, clock_mhz=None), "batch size 8"),
    ],
)
def test_a_point_reads_as_a_person_writes_it(point, text):
    assert str(point) == text
