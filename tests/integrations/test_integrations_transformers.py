"""The real Trainer on simulated boards: its recipe, its log and its checkpoints stay, and the cap holds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.support import tiny_models
from torch.utils.data import IterableDataset, WeightedRandomSampler
from transformers import Trainer, TrainerCallback
from transformers.training_args import ParallelMode

from wattune import Goal, InputError, SafetyStop, SessionRecord, open_device
from wattune.integrations.transformers import STATE_NAME, attach, check_trainer

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


class Stream(IterableDataset):
    """Texts that nobody can look through beforehand."""

    def __iter__(self):
        yield from tiny_models.texts(480, 2, 4)


class LoaderOfMyOwn(Trainer):
    """A loader of the user's own, which does not follow the arguments."""

    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=4, collate_fn=tiny_models.collate)


class Weighted(Trainer):
    """Draws more rows in a pass than the data set has."""

    def _get_train_sampler(self, *_):
        return WeightedRandomSampler(torch.ones(50), 104, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("data", "kind", "options", "samples"),
    [
        (tiny_models.texts(150), Trainer, {"max_steps": 20, "learning_rate": 3e-4}, 300),  # passes end with 6 rows
        (Stream(), Trainer, {"max_steps": 8}, 128),
        (tiny_models.texts(640), LoaderOfMyOwn, {"max_steps": 8}, 128),
        (tiny_models.texts(50), Weighted, {"max_steps": 8}, 120),
        (tiny_models.texts(70), Trainer, {"max_steps": 8, "dataloader_drop_last": True}, 116),
    ],
)
def test_the_steps_are_those_of_the_plain_trainer(tmp_path, data, kind, options, samples):
    plain, held = (tiny_models.trainer(tmp_path, tiny_models.model(), data, kind=kind, **options) for _ in range(2))
    capped = attach(held, device=NANO, cap_w=CAP_W)
    for made in (plain, held):
        torch.manual_seed(0)
        made.train()
    assert same(held.model, plain.model, 0)
    assert losses(held) == losses(plain)
    assert capped.record.samples == samples
    assert capped.record.recipe.keep
    assert capped.record.readings_above_cap == 0
    assert {change.point.shape for change in capped.record.changes} == {(16, 4)}
    assert f"in {options['max_steps']} steps" in capped.explain()


# ---------------------------------------------------------------------------------------------------------- one run


def test_lora_adapters_train_under_the_cap(tmp_path):
    made = tiny_models.trainer(
        tmp_path, tiny_models.model(lora=True), tiny_models.texts(480, 12, 12), num_train_epochs=2
    )
    device, updates = open_device(NANO), []
    capped = attach(made, device=device, cap_w=CAP_W, goal="edp", record=tmp_path / "s.json", log_to=updates.append)
    with pytest.raises(InputError, match="nothing was trained yet"):
        capped.explain()
    before = device.current()
    made.train()
    record = capped.record
    assert device.current() == before
    assert capped.session is None
    assert (record.ended, record.goal, record.samples) == ("finished", Goal("edp"), 960)
    assert record.readings_above_cap == 0
    assert record.exact.above_cap_s == 0
    assert record.changes[-1].point.clock_mhz > device.knobs[0].values[0]
    assert (tmp_path / "s.json").exists()
    assert [update.reason for update in updates if update.event == "end"] == ["finished"]
    made.train()  # and again
    assert capped.record.samples == 960


def test_evaluations_stay_under_the_cap(tmp_path):
    others = {"eval_dataset": tiny_models.texts(64, 40, 60, seed=3)}
    device = open_device(NANO)
    truth = device.ground_truth(CAP_W)
    options = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 7, "logging_steps": 50}
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(480), others=others, **options)
    capped = attach(made, device=device, cap_w=CAP_W)
    made.train()
    assert capped.record.readings_above_cap == 0
    assert truth.figures().above_cap_s < 1  # what it drew before it was held
    found = [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry]
    assert len(found) == 6  # before the first step, after each 7 steps, and at the end
    assert found[-1] < found[0]


class Between(TrainerCallback):
    """Notes the longest time of the board from the end of a step to the beginning of the next one."""

    def __init__(self, board):
        self.board, self.longest_s, self.ended_s = board, 0.0, board.now_s()

    def on_step_end(self, args, state, control, **others):
        self.ended_s = self.board.now_s()

    def on_step_begin(self, args, state, control, **others):
        if state.global_step:
            self.longest_s = max(self.longest_s, self.board.now_s() - self.ended_s)


def test_each_set_of_an_evaluation_takes_its_time(tmp_path):
    taken_s = []
    for count in (1, 3):
        others = {"eval_dataset": {str(number): tiny_models.texts(64, 12, 12) for number in range(count)}}
        options = {"eval_strategy": "steps", "eval_steps": 7, "others": others}
        made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(256), **options)
        board = open_device(NANO)
        attach(made, device=board, cap_w=CAP_W)
        between = Between(board)
        made.add_callback(between)
        made.train()
        taken_s.append(between.longest_s)
    assert taken_s[1] > 2 * taken_s[0] > 0


# --------------------------------------------------------------------------------------- endings and beginnings


class Interrupting(TrainerCallback):
    """Ctrl-C in the middle of a batch."""

    def on_substep_end(self, args, state, control, **others):
        if state.global_step == 25:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)


def test_an_interrupted_training_restores_the_board_and_resumes(tmp_path):
    data, options = tiny_models.texts(640), {"save_strategy": "steps", "save_steps": 12}
    plain = tiny_models.trainer(tmp_path / "plain", tiny_models.model(), data)
    plain.train()
    device = open_device(NANO)
    made = tiny_models.trainer(tmp_path / "held", tiny_models.model(), data, **options)
    made.add_callback(Interrupting())
    before = device.current()
    with pytest.raises(KeyboardInterrupt), attach(made, device=device, cap_w=CAP_W) as capped:
        made.train()
    assert device.current() == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (capped.record.ended, capped.record.samples) == ("interrupted", 25 * 16)

    later = tiny_models.trainer(tmp_path / "held", tiny_models.model(seed=5), data)
    again = attach(later, device=NANO, cap_w=CAP_W)
    later.train(resume_from_checkpoint=str(tmp_path / "held" / "checkpoint-24"))
    assert same(later.model, plain.model)
    assert again.record.samples == 640
    assert again.record.readings_above_cap == 0
    assert again.record.time_s > capped.record.time_s


class Requesting(TrainerCallback):
    """Requests a checkpoint after the fifth step, as SIGTERM does."""

    def on_step_end(self, args, state, control, **others):
        if state.global_step == 5:
            self.manager.is_checkpoint_requested = True


@pytest.mark.parametrize(
    ("options", "step", "samples", "said"),
    [
        ({"save_strategy": "best", "eval_strategy": "steps", "eval_steps": 5}, 5, 160, []),
        ({"save_strategy": "steps", "save_steps": 3, "enable_jit_checkpoint": True}, 5, 128, [(5, 3)]),
        ({"enable_jit_checkpoint": True}, 5, 80, [(5, 0)]),
    ],
)
def test_a_resumed_training_says_which_measurements_its_checkpoint_has(tmp_path, options, step, samples, said):
    data, others = tiny_models.texts(160), {"eval_dataset": tiny_models.texts(16)}
    made = tiny_models.trainer(
        tmp_path, tiny_models.model(), data, others=others, metric_for_best_model="eval_loss", **options
    )
    for one in made.callback_handler.callbacks:
        if hasattr(one, "jit_manager"):
            Requesting.manager = one.jit_manager
            made.add_callback(Requesting())
    attach(made, device=NANO, cap_w=CAP_W)
    made.train()
    later = tiny_models.trainer(tmp_path, tiny_models.model(), data)
    again = attach(later, device=NANO, cap_w=CAP_W)
    later.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert again.record.samples == samples
    notes = [note for note in again.record.notes if "checkpoint" in note]
    assert notes == [f"the checkpoint of step {a} has measurements up to step {b} alone" for a, b in said]


def test_after_an_error_the_trainer_can_train_again(tmp_path):
    class FailingOnce(TrainerCallback):
        fails = True

        def on_substep_end(self, args, state, control, **others):
            if self.fails:
                self.fails = False
                raise ZeroDivisionError

    device = open_device(NANO)
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(64))
    made.add_callback(FailingOnce())
    updates = []
    capped = attach(made, device=device, cap_w=CAP_W, log_to=updates.append)
    with pytest.raises(ZeroDivisionError):
        made.train()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    made.train()
    reasons = [update.reason for update in updates if update.event == "end"]
    assert reasons == ["failed: train() was left by an error", "finished"]
    assert (capped.record.ended, capped.record.samples) == ("finished", 64)
    assert device.current() == device.combinations()[-1]


ENDED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from contextlib import nullcontext
from tests.support import tiny_models
from transformers import TrainerCallback
from wattune.integrations.transformers import attach

class Ending(TrainerCallback):
    def on_step_begin(self, args, state, control, **others):
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

made = tiny_models.trainer("out", tiny_models.model(), tiny_models.texts(128, 40, 60))
capped = attach(made, device="sim:jetson-nano", cap_w=4.6, record="session.json")
made.add_callback(Ending())
with capped if {inside} else nullcontext():
    made.train()
"""


@pytest.mark.parametrize("inside", [True, False])
def test_a_signal_that_ends_the_process_leaves_a_record(tmp_path, inside):
    script = ENDED.format(root=str(Path(__file__).parents[2]), inside=inside)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGTERM, done.stderr
    record = SessionRecord.load(tmp_path / "session.json")
    assert (record.ended, record.samples) == ("interrupted", 3 * 16)
    assert "SIGTERM" in record.reason


def test_a_cap_that_cannot_be_kept_stops_the_training(tmp_path):
    device = open_device(NANO)
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(64, 12, 12), max_steps=190)
    capped = attach(made, device=device, cap_w=3.0)
    with pytest.raises(SafetyStop, match="at the lowest setting, above the cap of 3 W"):
        made.train()
    assert device.current() == device.combinations()[-1]
    assert capped.record.ended == "stopped for safety"
    saved = tmp_path / f"checkpoint-{made.state.global_step}" / "trainer_state.json"
    assert f'"{STATE_NAME}"' in saved.read_text()


class TakingBack(TrainerCallback):
    """Takes back an evaluation after it has begun, whose end stops for safety."""

    def on_epoch_end(self, args, state, control, **others):
        control.should_evaluate = False
        self.capped._evaluation.callback(self.stop)

    def stop(self):
        raise SafetyStop("above the cap")


def test_a_stop_at_the_end_of_the_training_restores_the_board(tmp_path):
    device, own = open_device(NANO), TakingBack()
    before = device.current()
    options = {"eval_strategy": "epoch", "others": {"eval_dataset": tiny_models.texts(16)}}
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(160, 12, 12), **options)
    own.capped = attach(made, device=device, cap_w=CAP_W)
    made.add_callback(own)
    with pytest.raises(SafetyStop, match="above the cap"):
        made.train()
    assert device.current() == before
    assert own.capped.record.ended == "stopped for safety"


def test_what_cannot_be_held_is_refused_in_one_line(tmp_path):
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(16))
    with pytest.raises(InputError, match="device: 3; allowed: a name such as auto"):
        attach(made, device=3, cap_w=CAP_W)
    attach(made, device=NANO, cap_w=CAP_W)
    with pytest.raises(InputError, match="before"):
        attach(made, device=NANO, cap_w=CAP_W)
    made = tiny_models.trainer(tmp_path, tiny_models.model(), tiny_models.texts(16), auto_find_batch_size=True)
    with pytest.raises(InputError, match="auto_find_batch_size"):
        attach(made, device=NANO, cap_w=CAP_W)


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
