import os
from pathlib import Path

import pytest
from tests.support.agent_sensors import TimedTree, put

from wattune.devices.host_memory import free_bytes, swapped_bytes
from wattune_agent.errors import FileFailed
from wattune_agent.tree import Tree

MIB = 1 << 20


@pytest.mark.parametrize(
    ("total_mib", "available_mib", "free_mib"), [(4000, 3000, 2744), (64000, 60000, 56800), (4000, 100, 0)]
)
def test_free_is_what_is_available_less_a_margin(
    tmp_path: Path, total_mib: int, available_mib: int, free_mib: int
) -> None:
    put(
        tmp_path,
        "/proc/meminfo",
        f"MemTotal: {total_mib << 10} kB\nMemFree: 5 kB\nMemAvailable: {available_mib << 10} kB",
    )
    assert free_bytes(TimedTree(tmp_path)) == free_mib * MIB


def test_a_file_without_figures_is_said(tmp_path: Path) -> None:
    put(tmp_path, "/proc/meminfo", "nothing")
    with pytest.raises(FileFailed, match="how much memory"):
        free_bytes(TimedTree(tmp_path))


def test_swapped_is_in_and_out(tmp_path: Path) -> None:
    put(tmp_path, "/proc/vmstat", "pgpgin 7\npswpin 3\npswpout 4\npswpout_x 9\n")
    assert swapped_bytes(TimedTree(tmp_path)) == 7 * os.sysconf("SC_PAGE_SIZE")
    assert swapped_bytes(TimedTree(tmp_path / "nothing")) == 0.0


def test_on_this_machine() -> None:
    assert free_bytes(Tree()) > 0.0
    assert swapped_bytes(Tree()) >= 0.0
