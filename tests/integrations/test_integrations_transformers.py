"""The real Trainer on simulated boards: its recipe, its log and its checkpoints stay, and the cap holds."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
from tests.support import tiny_models
from tests.support.live_board import live, wait_for
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback
from transformers.training_args import ParallelMode

from wattune import Goal, InputError, SafetyStop, open_device
from wattune.integrations.trainer_setup import check_trainer
from wattune.integrations.transformers import STATE_NAME, attach

NANO, CAP_W = "sim:jetson-nano", 4.6

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft's, of Transformers
]


def same(one, other, tolerance=1e-5):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, atol=tolerance, rtol=0) for a, b in pairs)


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def board(folder, *changes):
    """The Nano with some lines of its file changed."""
    from importlib.resources import files

    text = (files("wattune.devices.simulator") / "boards" / "jetson-nano.toml").read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (folder / "board.toml").write_text(text)
    return f"sim:{folder / 'board.toml'}"


# ------------------------------------------------------------------------------------------------------- the recipe


def test_two_hundred_steps_are_those_of_the_plain_trainer(tmp_path):
    data, options = tiny_models.texts(400), {"max_steps": 200, "learning_rate": 3e-4}
    plain = tiny_models.trainer(tmp_path, tiny_models.model(), data, **options)
    plain.train()
    held = tiny_models.trainer(tmp_path, tiny_models.model(), data, **options)
    capped = attach(held, device=NANO, cap_w=CAP_W)
    held.train()
    sizes = {change.point.micro_batch_size for change in capped.record.changes}
    assert len(sizes) > 1
    assert same(held.model, plain.model)
    assert losses(held) == pytest.approx(losses(plain), rel=1e-4)
    assert capped.record.samples == 200 * 16
    assert "in 200 steps" in capped.explain()
    assert capped.record.recipe.keep
    assert capped.record.recipe.batch_size == 16


def test_lora_adapters_train_under_the_cap_and_the_log_says_how(tmp_path):
    made = tiny_models.trainer(
        tmp_path, tiny_models.model(lora=True), tiny_models.texts(1200), num_train_epochs=2, logging_steps=10
    )
    capped = attach(made, device=NANO, cap_w=CAP_W, record=tmp_path / "session.json")
    output = made.train()
    record = capped.record
    assert record.ended == "finished"
    assert record.readings_above_cap == 0
    assert record.exact.above_cap_s == 0
    assert record.point.micro_batch_size is None  # all 16 rows at once: fewer launches
    assert record.point.clock_mhz > open_device(NANO).knobs[0].values[0]
    assert (tmp_path / "session.json").exists()
    logged = [entry for entry in made.state.log_history if "loss" in entry][-1]
    assert logged["power_mean_w"] < CAP_W
    assert logged["clock_mhz"] in open_device(NANO).knobs[0].values
    assert logged["micro_batch_size"] == 16
    assert logged["tokens_per_s"] > 0
    assert output.metrics["energy_j"] == pytest.approx(record.energy_j, rel=0.1)
    assert output.metrics["power_peak_w"] <= CAP_W
    assert record.tokens == sum(len(sample["input_ids"]) for sample in tiny_models.texts(1200)) * 2
    assert {cell.tokens_per_s > 0 for cell in record.table.cells} == {True}


def test_the_trainer_is_afterwards_as_it_was(tmp_path):
    device = open_device(NANO)
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(64))
    capped = attach(made, device=device, cap_w=CAP_W)
    before = device.current()
    made.train()
    assert device.current() == before
    assert made.training_step.__func__ is Trainer.training_step
    assert made.get_batch_samples.__func__ is Trainer.get_batch_samples
    assert capped.point is None
    made.train()  # and again
    assert capped.record.samples == 64


def test_a_goal_is_searched_for(tmp_path):
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(64))
    capped = attach(made, device=NANO, cap_w=CAP_W, goal="edp")
    made.train()
    assert capped.record.goal == Goal("edp")
    with pytest.raises(InputError, match="goal"):
        attach(tiny_models.trainer(tmp_path, tiny_models.model(), []), device=NANO, cap_w=CAP_W, goal="joy")


def test_trackers_get_the_updates_of_each_run(tmp_path):
    updates = []
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(64))
    capped = attach(made, device=NANO, cap_w=CAP_W, log_to=updates.append)
    joules = 0.0
    for _ in range(2):
        made.train()
        joules += capped.record.energy_j
    ends = [update for update in updates if update.event == "end"]
    assert [update.reason for update in ends] == ["finished"] * 2
    assert sum(update.energy_j for update in ends) == pytest.approx(joules)
    with pytest.raises(InputError, match="log_to: 'tensorbord'"):
        attach(tiny_models.trainer(tmp_path, tiny_models.model(), []), device=NANO, cap_w=CAP_W, log_to="tensorbord")


def test_without_a_cap_it_chooses_the_fastest(tmp_path):
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(800))
    capped = attach(made, device=NANO, cap_w=None)
    made.train()
    assert capped.record.point.clock_mhz == open_device(NANO).knobs[0].values[-1]


# ------------------------------------------------------------------------------------------------------ lengths


def test_power_holds_at_the_longest_row_of_the_data_set(tmp_path):
    data = [*tiny_models.texts(1600, 2, 4), *tiny_models.texts(1, 60, 60)]
    options = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "logging_steps": 50}
    made = tiny_models.trainer(tmp_path, tiny_models.model(width=256), data, **options)
    capped = attach(made, device=NANO, cap_w=CAP_W)
    made.train()
    record = capped.record
    assert "power and memory are valid up to 60 tokens per row, the longest in the data set" in record.notes
    assert record.longest_s > 0
    raw = {cell.point: cell for cell in record.table.cells}
    assert all(cell.power_peak_w >= cell.power_mean_w for cell in raw.values())
    assert record.readings_above_cap == 0

    short = tiny_models.trainer(tmp_path, tiny_models.model(width=256), data[:1600], **options)
    other = attach(short, device=NANO, cap_w=CAP_W)
    short.train()
    peaks = {cell.point: cell.power_peak_w for cell in other.record.table.cells}
    common = [(cell.power_peak_w, peaks[point]) for point, cell in raw.items() if point in peaks]
    assert max(long_w / short_w for long_w, short_w in common) > 1.02


def test_a_micro_batch_whose_longest_rows_do_not_fit_is_left_out(tmp_path):
    device = open_device(NANO)
    data = [*tiny_models.texts(300, 2, 4), *tiny_models.texts(1, 60, 60)]
    device._available_bytes = 1.6e6  # no room for 16 rows as long as the longest
    made = tiny_models.trainer(tmp_path, tiny_models.model(), data, logging_steps=50)
    capped = attach(made, device=device, cap_w=CAP_W)
    made.train()
    assert any("micro-batches of 16 are left out" in note for note in capped.record.notes)
    assert 16 not in {change.point.micro_batch_size or 16 for change in capped.record.changes}


def test_rows_of_one_length_need_no_extra_pass(tmp_path):
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(300, 12, 12), logging_steps=50)
    capped = attach(made, device=NANO, cap_w=CAP_W)
    made.train()
    assert "all rows have the same length" in capped.record.notes
    # A single pass of each micro-batch that was new, to see that it fits.
    assert capped.record.longest_s < 0.5


class Stream(IterableDataset):
    """Texts that nobody can look through beforehand; a long one comes late."""

    def __iter__(self):
        yield from tiny_models.texts(480, 2, 4)
        yield from tiny_models.texts(1, 50, 50)
        yield from tiny_models.texts(479, 2, 4)


def test_a_stream_is_measured_again_when_a_longer_row_comes(tmp_path):
    made = tiny_models.trainer(tmp_path, tiny_models.model(), Stream(), max_steps=60, logging_steps=50)
    capped = attach(made, device=NANO, cap_w=CAP_W)
    made.train()
    record = capped.record
    assert "power and memory are valid up to 50 tokens per row, the longest seen so far" in record.notes
    assert any(note.startswith("a longer row came after 480 samples") for note in record.notes)
    after = next(change for change in record.changes if change.samples == 480)
    assert after.point.clock_mhz == open_device(NANO).knobs[0].values[0]
    assert record.readings_above_cap == 0


# ---------------------------------------------------------------------------------------------------- data types


class Half(Trainer):
    """fp16 autocast, which Transformers itself leaves out on a CPU."""

    def compute_loss_context_manager(self):
        return torch.autocast("cpu", torch.float16)


def test_fp16_autocast_is_priced_as_such(tmp_path):
    found = {}
    for kind in (Trainer, Half):
        made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(64), kind=kind, max_steps=2)
        capped = attach(made, device=NANO, cap_w=None)
        seen = []

        class Look(TrainerCallback):
            def on_step_end(self, args, state, control, seen=seen, capped=capped, **others):
                seen.extend(work.data_type for work in capped._training.run.counter._works.values())

        made.add_callback(Look())
        made.train()
        found[kind] = set(seen)
    assert found == {Trainer: {"fp32"}, Half: {"fp16"}}


def test_fp16_that_trains_in_fp32_is_reported(tmp_path):
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(32), fp16=True)
    capped = attach(made, device=NANO, cap_w=CAP_W)
    made.train()
    assert "fp16 was asked for, and Transformers trains in fp32 on this processor" in capped.record.notes


def test_bf16_autocast(tmp_path):
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(32), bf16=True)
    attach(made, device=NANO, cap_w=CAP_W)
    with pytest.raises(InputError, match="bf16"):  # the Nano's GPU has no such arithmetic
        made.train()
    able = board(tmp_path, ("fp16 = ", "bf16 = 400.0\nfp16 = "))
    data = tiny_models.texts(320)
    held = tiny_models.trainer(tmp_path, tiny_models.model(lora=True), data, bf16=True)
    capped = attach(held, device=able, cap_w=CAP_W)
    held.train()
    plain = tiny_models.trainer(tmp_path, tiny_models.model(lora=True), data, bf16=True)
    plain.train()
    assert capped.record.readings_above_cap == 0
    assert losses(held) == pytest.approx(losses(plain), rel=1e-2)


# ---------------------------------------------------------------------------------------------------- evaluation


def test_evaluation_stays_under_the_cap(tmp_path):
    others = {"eval_dataset": tiny_models.texts(64, 40, 60, seed=3)}
    device = open_device(NANO)
    truth = device.ground_truth(CAP_W)
    made = tiny_models.trainer(
        tmp_path,
        tiny_models.model(),
        tiny_models.texts(480),
        others=others,
        eval_strategy="steps",
        eval_steps=7,
        logging_steps=50,
    )
    capped = attach(made, device=device, cap_w=CAP_W)
    before_s = device.now_s()
    found = made.evaluate()
    assert device.now_s() > before_s
    assert device.current() == device.combinations()[-1]
    made.train()
    assert made.evaluate()["eval_loss"] < found["eval_loss"]
    assert capped.record.readings_above_cap == 0
    assert truth.figures().above_cap_s < 1  # what it drew before it was held, and between
    assert [entry for entry in made.state.log_history if "eval_loss" in entry]


# --------------------------------------------------------------------------------------- endings and beginnings


class Interrupting(TrainerCallback):
    """Ctrl-C in the middle of a batch."""

    def __init__(self, step):
        self.step = step

    def on_substep_end(self, args, state, control, **others):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def test_an_interrupt_in_the_middle_of_a_batch_leaves_a_checkpoint(tmp_path):
    data = tiny_models.texts(640)
    plain = tiny_models.trainer(tmp_path / "plain", tiny_models.model(), data)
    plain.train()
    device = open_device(NANO)
    made = tiny_models.trainer(tmp_path / "held", tiny_models.model(), data)
    made.add_callback(Interrupting(25))
    capped = attach(made, device=device, cap_w=CAP_W)
    before = device.current()
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert device.current() == before
    assert capped.record.ended == "interrupted"
    assert capped.record.samples == 25 * 16
    assert (tmp_path / "held" / "checkpoint-25" / STATE_NAME).exists()

    later = tiny_models.trainer(tmp_path / "held", tiny_models.model(seed=5), data)
    again = attach(later, device=NANO, cap_w=CAP_W)
    later.train(resume_from_checkpoint=True)
    assert same(later.model, plain.model)
    assert again.record.samples == 640
    assert again.record.readings_above_cap == 0
    measured = [cell.point for cell in capped.record.table.cells]
    assert [cell.point for cell in again.record.table.cells][: len(measured)] == measured


class Signalling(TrainerCallback):
    """Ctrl-C while the optimizer steps."""

    def on_pre_optimizer_step(self, args, state, control, **others):
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_while_the_optimizer_steps_waits_for_it(tmp_path):
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(160))
    attach(made, device=NANO, cap_w=CAP_W)
    made.add_callback(Signalling())
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert (tmp_path / "checkpoint-4" / STATE_NAME).exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_of_the_model_restores_the_board(tmp_path):
    class Failing(TrainerCallback):
        def on_substep_end(self, args, state, control, **others):
            raise ZeroDivisionError

    device = open_device(NANO)
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(64))
    made.add_callback(Failing())
    capped = attach(made, device=device, cap_w=CAP_W)
    with pytest.raises(ZeroDivisionError):
        made.train()
    assert device.current() == device.combinations()[-1]
    assert made.training_step.__func__ is Trainer.training_step
    assert capped.record is None or capped.record.ended == "failed"


def test_a_cap_that_cannot_be_kept_stops_the_training(tmp_path):
    device = open_device(NANO)
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(64), max_steps=5000, logging_steps=500)
    capped = attach(made, device=device, cap_w=3.0)
    with pytest.raises(SafetyStop, match="at the lowest setting, above the cap of 3 W"):
        made.train()
    assert device.current() == device.combinations()[-1]
    assert capped.record.ended == "stopped for safety"
    assert (tmp_path / f"checkpoint-{made.state.global_step}" / STATE_NAME).exists()


def test_scaling_that_never_finds_a_scale_is_an_error(tmp_path, monkeypatch):
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(640))
    skipped = property(lambda self: True)
    monkeypatch.setattr(type(made.accelerator), "optimizer_step_was_skipped", skipped)
    attach(made, device=NANO, cap_w=CAP_W)
    with pytest.raises(InputError, match="25 consecutive steps were skipped"):
        made.train()


def test_what_cannot_be_held_is_refused_in_one_line(tmp_path):
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(16), auto_find_batch_size=True)
    with pytest.raises(InputError, match="auto_find_batch_size"):
        attach(made, device=NANO, cap_w=CAP_W)
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(16))
    attach(made, device=NANO, cap_w=CAP_W)
    with pytest.raises(InputError, match="before"):
        attach(made, device=NANO, cap_w=CAP_W)
    with pytest.raises(InputError, match="supply"):
        attach(
            tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(16)),
            device=NANO,
            cap_w="9W@supply",
        )


def test_a_batch_that_cannot_be_cut_keeps_its_size_and_gets_its_clock(tmp_path):
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(320), kind=tiny_models.WithinBatch)
    capped = attach(made, device=NANO, cap_w=CAP_W)
    made.train()
    record = capped.record
    assert "the micro-batch size stays at 4: its loss is not the sum or mean of its parts'" in record.notes
    assert {change.point.micro_batch_size for change in record.changes} == {4}
    assert len({change.point.clock_mhz for change in record.changes}) > 1


# ------------------------------------------------------------------------------------------------- on real time


def test_ctrl_c_on_a_live_board_brings_it_back(tmp_path):
    with live(tmp_path / "board", throttled=False) as nano:
        nano.works(os.getpid())
        made = tiny_models.trainer(
            tmp_path / "out",
            tiny_models.model(lora=True),
            tiny_models.texts(4000),
            num_train_epochs=1000,
            logging_steps=200,
        )
        capped = attach(made, device=f"jetson?root={nano.root}", cap_w=7.0)
        stop = threading.Timer(9.0, lambda: os.kill(os.getpid(), signal.SIGINT))
        stop.start()
        with pytest.raises(KeyboardInterrupt):
            made.train()
        assert wait_for(nano.is_as_found, 5), nano.changes()
    record = capped.record
    assert record.ended == "interrupted"
    assert record.provenance.kind == "simulated"
    assert record.readings_above_cap < record.readings / 4
    assert record.readings > 50
    assert len(record.table.cells) >= 2
    assert any("no micro-batch size above 4 is tried" in note for note in record.notes)
    assert (tmp_path / "out" / f"checkpoint-{made.state.global_step}" / STATE_NAME).exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"is_fsdp_enabled": True}, "FSDP; allowed: one device, or one process for each"),
        ({"is_distributed_loading_by_transformers": True}, "tensor parallelism"),
        ({"args": SimpleNamespace(parallel_mode=ParallelMode.NOT_DISTRIBUTED)}, "nn.DataParallel"),
    ],
)
def test_other_ways_to_share_the_work_are_refused(change, said):
    made = {
        "args": SimpleNamespace(parallel_mode=ParallelMode.DISTRIBUTED),
        "accelerator": SimpleNamespace(parallelism_config=None),
        "is_deepspeed_enabled": False,
        "is_fsdp_enabled": False,
    }
    with pytest.raises(InputError, match=said):  # the Trainers themselves need GPUs
        check_trainer(SimpleNamespace(**{**made, **change}))
