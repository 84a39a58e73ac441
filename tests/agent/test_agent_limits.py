"""Limits take on old and new kernels, and come back whatever happens to one of the files."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.agent_trees import HIGH, LISTED_MHZ, LOW, RAILGATE, MadeTree, gpu_tree, put

from wattune_agent.errors import FileFailed, Forbidden
from wattune_agent.file_knob import TRIES, Limits, bring_back
from wattune_agent.knobs import whole

HZ = [round(mhz * 1e6) for mhz in LISTED_MHZ]


class OldKernel(MadeTree):
    refuses = True


def limits_of(tree):
    return Limits(tree, HIGH, [LOW])


def now(tree):
    return whole(tree, LOW), whole(tree, HIGH)


def fails_at(tree, path, error, *, times=10**9):
    left = [times]

    def before(written, text):
        if written == path and left[0] > 0:
            left[0] -= 1
            raise error

    tree.before_write = before


@pytest.mark.parametrize("kind", [MadeTree, OldKernel])
@settings(max_examples=25)
@given(found=st.tuples(st.sampled_from(HZ), st.sampled_from(HZ)), values=st.lists(st.sampled_from(HZ), max_size=5))
def test_the_minimum_is_never_above_the_maximum_and_both_come_back(kind, found, values, tmp_path_factory):
    low, high = min(found), max(found)
    tree = kind(gpu_tree(tmp_path_factory.mktemp("tree"), low_mhz=low / 1e6, high_mhz=high / 1e6, links=False))
    limits = limits_of(tree)
    real_write = tree.write

    def write(path, text):
        real_write(path, text)
        low_now, high_now = now(tree)
        assert low_now <= high_now

    tree.write = write
    for value in values:
        limits.pin(value)
        assert now(tree) == (value, value)
        assert limits.pinned() == value
    assert limits.restore({LOW: f"{low}\n", HIGH: f"{high}\n"}) == []
    assert now(tree) == (low, high)
    assert len(tree.written) == 2 * len(values) + 2  # each order was right the first time


def test_a_kernel_that_keeps_khz_is_within_the_tolerance(tmp_path):
    class Rounding(MadeTree):
        def write(self, path, text):
            khz = int(text) // 1000 + (1 if path == HIGH and int(text) % 1000 else 0)
            super().write(path, str(khz * 1000))

    put(tmp_path, LOW, "76800500\n")
    put(tmp_path, HIGH, "921600500\n")
    tree = Rounding(tmp_path)
    limits = limits_of(tree)
    limits.pin(460800500)
    assert now(tree) == (460800000, 460801000)
    assert limits.pinned() == 460801000
    assert limits.restore({LOW: "76800500\n", HIGH: "921600500\n"}) == []


def test_a_silent_clamp_is_noticed(tree):
    tree.clamp_mhz = 510.0
    assert limits_of(tree).pin(HZ[-1]) == {LOW: "1020000000", HIGH: "1020000000"}
    assert limits_of(tree).pin(HZ[1]) == {}


def test_limits_that_a_clamp_hides_are_reached_by_the_other_order(tmp_path):
    """An old kernel whose maximum reads lower than what it compares with: the usual order is refused each time."""
    tree = OldKernel(gpu_tree(tmp_path, low_mhz=1020.0, high_mhz=1020.0))
    real = tree.read
    tree.read = lambda path: "306000000" if path == HIGH and tree.written.count(HIGH) < TRIES else real(path)
    limits_of(tree).pin(HZ[3])
    assert tree.written[:2] == [HIGH, HIGH]  # refused twice, then the minimum goes first
    assert tree.written[2:] == [LOW, HIGH]
    assert real(LOW) == real(HIGH) == str(HZ[3])


def test_a_file_that_may_not_be_written_says_so_at_once(tree):
    fails_at(tree, LOW, Forbidden("min_freq may not be written"))
    with pytest.raises(Forbidden, match="min_freq"):
        limits_of(tree).pin(HZ[3])
    assert tree.written == [LOW]


# ----------------------------------------------------------------------------------------------------- bringing back


SAVED = {LOW: "408000000\n", HIGH: "918000000\n", RAILGATE: "1\n"}


@pytest.mark.parametrize("path", list(SAVED))
@pytest.mark.parametrize("error", [FileFailed("gone"), Forbidden("not allowed")], ids=["vanished", "forbidden"])
def test_one_file_that_fails_does_not_keep_the_others(tmp_path, path, error):
    tree = MadeTree(gpu_tree(tmp_path, low_mhz=612.0, high_mhz=612.0, railgate="0\n"))
    fails_at(tree, path, error)
    failures = bring_back(tree, SAVED)
    assert [(failure.path, failure.text, failure.clamped) for failure in failures] == [(path, str(error), False)]
    for other in set(SAVED) - {path}:
        assert (tmp_path / other[1:]).read_text() == SAVED[other]


def test_a_file_that_cannot_be_written_but_holds_the_text_is_no_failure(tmp_path):
    tree = MadeTree(gpu_tree(tmp_path, low_mhz=612.0, high_mhz=612.0, railgate="1\n"))
    fails_at(tree, RAILGATE, Forbidden("not allowed"))
    assert bring_back(tree, SAVED) == []


def test_a_text_that_is_no_number_is_brought_back_too(tmp_path):
    tree = MadeTree(gpu_tree(tmp_path))
    tree.follows = False
    assert bring_back(tree, {LOW: "unset\n", HIGH: "unset\n"}) == []
    assert (tmp_path / LOW[1:]).read_text() == "unset\n"
