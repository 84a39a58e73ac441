"""A session on a group of boards: the search, the limiter and the controller see one device."""

import pytest
import torch
from tests.support import sessions
from tests.support.sessions import board, convolutional, pictures
from torch.utils.data import DataLoader

from wattune.devices.group import device_group


def trained(device, cap_w):
    model = convolutional()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(pictures(1024), batch_size=32, shuffle=True)
    return sessions.trained(model, device=device, optimizer=optimizer, loader=loader, cap_w=cap_w, passes=2).record


@pytest.mark.parametrize(("pools", "cap_w"), [([0, 0, 0], 13.5), ([0, 1, 2], 4.5)])
def test_equal_boards_are_led_as_one_is(pools, cap_w):
    one = trained(board(noise_w=0.0), 4.5)
    three = trained(device_group([board(noise_w=0.0) for _ in range(3)], pools=pools), cap_w)
    assert [change.point for change in three.changes] == [change.point for change in one.changes]
    assert three.exact.time_s == one.exact.time_s
    assert three.exact.energy_j == pytest.approx(3 * one.exact.energy_j)
    assert three.exact.above_cap_s == one.exact.above_cap_s == 0.0
    assert three.energy_j == pytest.approx(3 * one.energy_j)
