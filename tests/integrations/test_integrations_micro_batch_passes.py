"""The same optimizer steps in micro-batches of any size: the same parameters, the same log."""

import pytest
import torch
from tests.support import tiny_models
from transformers import LlamaConfig, LlamaForSequenceClassification, Trainer

from wattune.integrations.micro_batch_passes import MicroBatchPasses
from wattune.online.ranks.gradient_sync import GradientSync

pytestmark = pytest.mark.slow


def trained(folder, size, data, *, made=None, **options):
    """A Trainer after its training in micro-batches of ``size`` rows, None: as it was set up."""
    found = tiny_models.trainer(folder, made or tiny_models.model(), data, **options)
    if size is not None:
        passes = MicroBatchPasses(found, GradientSync(found.model, 1))
        fetch = found.get_batch_samples

        def fetched(*arguments):
            batches, items = fetch(*arguments)
            if passes.rule is None:
                found.rule = passes.rule = next(iter(passes.fitting_rules(found.model, batches, items)), None)
                passes.size = size
            passes.begin(len(batches))
            return batches, items

        found.get_batch_samples = fetched
        found.training_step = passes.training_step
        found.accelerator.backward = passes.backward
    found.train()
    return found


def assert_same(one, other, tolerance=1e-5):
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=tolerance, rtol=0)
    losses = [[entry["loss"] for entry in t.state.log_history if "loss" in entry] for t in (one, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("size", [1, 3, 8, 16])
def test_any_size_trains_the_same_causal_model(tmp_path, size):
    data = tiny_models.texts(70)  # the last batch, and the last step, are smaller
    found = trained(tmp_path, size, data)
    assert found.rule == "sum"
    assert_same(found, trained(tmp_path, None, data))


class Classes(Trainer):
    """Somebody's own loss, a mean over the rows, which knows nothing of accumulation."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        return torch.nn.functional.cross_entropy(model(**inputs).logits, labels)


def classifier():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tiny_models.VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=3,
        pad_token_id=0,
    )
    return LlamaForSequenceClassification(config)


def collate_classes(samples):
    found = tiny_models.collate(samples)
    found["labels"] = torch.tensor([sum(s["input_ids"]) % 3 for s in samples])
    return found


@pytest.mark.parametrize("size", [2, 8])
def test_a_mean_over_rows_is_weighted_by_them(tmp_path, size):
    options = {"kind": Classes, "collator": collate_classes}
    data = tiny_models.texts(64)
    found = trained(tmp_path, size, data, made=classifier(), **options)
    assert found.rule == "rows"
    assert_same(found, trained(tmp_path, None, data, made=classifier(), **options))


class MeanOfTokens(Trainer):
    """Somebody's own loss, a mean over the labels of a batch."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        logits = model(**inputs).logits[:, :-1].flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten())


@pytest.mark.parametrize("size", [2, 8])
def test_a_mean_over_labels_is_weighted_by_them(tmp_path, size):
    data = tiny_models.texts(64)
    found = trained(tmp_path, size, data, kind=MeanOfTokens)
    assert found.rule == "labels"
    assert_same(found, trained(tmp_path, None, data, kind=MeanOfTokens))


def test_a_loss_that_no_rule_fits_is_left_alone(tmp_path):
    data = tiny_models.texts(32)
    found = trained(tmp_path, 2, data, kind=tiny_models.WithinBatch)
    assert found.rule is None
    assert_same(found, trained(tmp_path, None, data, kind=tiny_models.WithinBatch))


class Weighted(Trainer):
    """The example of the Transformers' own documentation: a mean that classes weigh in. It counts what it has seen."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.rows_seen, self.seen_by_mode = 0, {"train": [], "eval": []}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        self.rows_seen += len(labels)
        self.seen_by_mode["train" if model.training else "eval"].append(len(labels))
        weights = torch.tensor([1.0, 2.0, 30.0])
        return torch.nn.functional.cross_entropy(model(**inputs).logits, labels, weight=weights)


def test_a_weighted_mean_is_not_divided_and_trials_are_not_counted(tmp_path):
    """At an untrained model every row has the same loss, so that a wrong rule fits its value."""
    data, options = tiny_models.texts(64), {"kind": Weighted, "collator": collate_classes}
    found = trained(tmp_path, 2, data, made=classifier(), **options)
    assert found.rule is None
    plain = trained(tmp_path, None, data, made=classifier(), **options)
    assert (found.rows_seen, found.seen_by_mode) == (plain.rows_seen, plain.seen_by_mode)
    assert_same(found, plain)


def test_single_rows_are_put_together(tmp_path):
    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
    data = tiny_models.texts(40)
    found = trained(tmp_path, 4, data, **options)
    assert found.rule == "sum"
    assert_same(found, trained(tmp_path, None, data, **options))


def test_trying_out_draws_no_random_number(tmp_path):
    options = {"attention_dropout": 0.3}
    data = tiny_models.texts(32)
    found = trained(tmp_path, 4, data, made=tiny_models.model(**options))
    assert_same(found, trained(tmp_path, None, data, made=tiny_models.model(**options)))
