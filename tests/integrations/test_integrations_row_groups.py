"""Rows cut out of a batch and batches put together hold what the batches held, and nothing else."""

import pytest
import torch

from wattune.integrations.row_groups import cut, joined, longest_row, repeated, rows, tokens, width


def batch(*lengths, pad=0):
    longest = max(lengths)
    ids = torch.tensor([[7] * n + [pad] * (longest - n) for n in lengths])
    mask = torch.tensor([[1] * n + [0] * (longest - n) for n in lengths])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100), "names": [*lengths]}


def test_pieces_have_all_rows_in_order():
    pieces = cut(batch(3, 1, 2, 3, 2), 2)
    assert [rows(piece) for piece in pieces] == [2, 2, 1]
    assert torch.equal(torch.cat([p["labels"] for p in pieces]), batch(3, 1, 2, 3, 2)["labels"])
    assert [name for p in pieces for name in p["names"]] == [3, 1, 2, 3, 2]


def test_what_has_no_rows_of_its_own_is_not_cut():
    packed = {"input_ids": torch.zeros(1, 12), "cu_seq_lens_q": torch.tensor([0, 5, 12])}
    assert rows(packed) is None
    assert cut(packed, 1) == [packed]
    assert joined([packed, packed], "input_ids", 0) is None


def test_shorter_rows_are_filled_up_with_what_changes_no_result():
    both = joined([batch(2, 1, pad=5), batch(4, 3, pad=5)], "input_ids", 5)
    assert both["input_ids"].tolist() == [[7, 7, 5, 5], [7, 5, 5, 5], [7, 7, 7, 7], [7, 7, 7, 5]]
    assert both["labels"].tolist() == [[7, 7, -100, -100], [7] + [-100] * 3, [7] * 4, [7, 7, 7, -100]]
    assert both["attention_mask"].sum() == 10
    assert both["names"] == [2, 1, 4, 3]


@pytest.mark.parametrize(
    "others",
    [
        {"pixels": torch.zeros(2, 5)},  # nobody knows what it would be filled up with
        {"scale": 2.0},
    ],
)
def test_what_cannot_be_put_together_is_left_alone(others):
    first = {**batch(2, 2), "pixels": torch.zeros(2, 4), "scale": 1.0}
    assert joined([first, {**first, **others}], "input_ids", 0) is None


def test_lengths_that_differ_without_a_mask_are_left_alone():
    first, second = ({k: v for k, v in b.items() if k != "attention_mask"} for b in (batch(2), batch(3)))
    assert joined([first, second], "input_ids", 0) is None
    assert joined([first, first], "input_ids", 0)["input_ids"].shape == (2, 2)


def test_what_a_batch_holds():
    assert int(tokens(batch(3, 1), "input_ids")) == 4
    assert tokens({"input_ids": torch.zeros(2, 6, dtype=torch.long)}, "input_ids") == 12
    assert tokens({"pixel_values": torch.zeros(4, 3, 8, 8)}, "pixel_values") == 4
    assert width(batch(3, 1), "input_ids") == 3
    assert width({"pixel_values": torch.zeros(4, 3, 8, 8)}, "pixel_values") == 1


def test_the_longest_row_many_times():
    found = batch(1, 4, 2)
    assert longest_row(found) == 1
    assert repeated(found, 1, 5)["input_ids"].tolist() == [[7] * 4] * 5
