"""What a session tells while it trains: to functions, to the log, and through its own attributes."""

import logging
from itertools import pairwise

import pytest
import torch
from tests.support import sessions
from tests.support.sessions import convolutional, pictures
from torch.utils.data import DataLoader

import wattune


def trained(passes=2, **options):
    model = convolutional()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(pictures(), batch_size=64, shuffle=True)
    return sessions.trained(model, optimizer=optimizer, loader=loader, passes=passes, **options)


def test_a_function_is_told_every_second_every_point_and_the_end():
    updates = []
    session = trained(log_to=updates.append)
    record, last = session.record, updates[-1]
    assert all(isinstance(update, wattune.RunUpdate) for update in updates)
    assert [update.event for update in updates].count("end") == 1
    assert (last.event, last.reason) == ("end", "finished")
    assert (last.samples, last.steps, last.passes) == (record.samples, record.steps, record.passes)
    assert last.energy_j == record.energy_j
    points = [update for update in updates if update.event == "point"]
    assert [update.reason for update in points] == [change.why for change in record.changes]
    assert {update.batch_size for update in points} == {change.point.batch_size for change in record.changes}
    assert {update.clock_mhz for update in points} == {change.point.clock_mhz for change in record.changes}
    readings = [update for update in updates if update.event == "reading"]
    assert len(readings) >= record.time_s - 3  # once a second, or less often if a step takes longer
    assert all(a.time_s <= b.time_s and a.energy_j <= b.energy_j for a, b in pairwise(updates))
    assert {update.cap_w for update in updates} == {4.5}
    assert all(1 < update.power_w <= record.power_peak_w for update in readings)
    energy_j = sum((b.time_s - a.time_s) * b.power_w for a, b in pairwise(updates) if b.power_w is not None)
    assert energy_j == pytest.approx(last.energy_j, rel=0.05)


def test_a_function_that_fails_is_left_out_and_training_continues():
    calls, others = [], []

    def fails(update):
        calls.append(update)
        raise OSError("the disk is full")

    with pytest.warns(UserWarning, match=r"log_to= failed .*OSError: the disk is full.*; training continues"):
        session = trained(log_to=[fails, others.append], passes=1)
    assert len(calls) == 1
    assert len(others) > 1
    assert session.ended == "finished"


def test_the_log_has_points_and_the_end(caplog):
    with caplog.at_level(logging.INFO, logger="wattune"):
        session = trained()
    messages = [record.getMessage() for record in caplog.records if record.name == "wattune"]
    assert len(messages) == len(session.record.changes) + 1
    assert messages[0] == "Measuring batch size 64 at 76.8 MHz: probe"
    assert messages[-1].startswith("Session finished after 4096 samples in ")
