"""The real Trainer in several processes over gloo: one decision for all ranks, and the plain Trainer's recipe."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tests.support import tiny_models
from tests.support.ranks import apart, job, refusal, values, weights

pytestmark = pytest.mark.slow

NANO, CAP_W = "sim:jetson-nano", 4.6

ROOT = str(Path(__file__).parents[2])


def quiet():
    # What the libraries say of processes without a GPU.
    for text in (".*barrier\\(\\): using the device under current context", ".*No device id is provided via"):
        warnings.filterwarnings("ignore", text)


def losses(made):
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


def prepared(folder, data, **options):
    quiet()
    return tiny_models.trainer(folder, tiny_models.model(), data, **{"logging_steps": 10, **options})


def own_data(kind):
    return tiny_models.texts(75 if kind == "uneven" else 384)  # the last step of a pass is smaller, and is filled up


def train(rank, folder, kind, options, cap):
    from wattune.integrations.transformers import attach

    plain = prepared(folder / "plain", own_data(kind), **options)
    plain.train()
    held = prepared(folder / "held", own_data(kind), **options)
    capped = attach(held, device=NANO, **cap)
    held.train()
    record, summary = capped.record, None
    if record is not None:
        summary = record.samples, record.readings_above_cap, record.ranks, record.over, record.device
    division = held.args.per_device_train_batch_size, held.args.gradient_accumulation_steps
    distance = apart(weights(plain.model), weights(held.model))
    return distance, losses(plain), losses(held), weights(held.model), division, summary


@pytest.mark.parametrize(
    ("kind", "options", "cap"),
    [
        ("even", {"max_steps": 15, "learning_rate": 3e-4}, {"cap_w": CAP_W}),
        ("uneven", {"num_train_epochs": 3, "max_grad_norm": 0.1}, {"cap_w": 2 * CAP_W, "over": "node"}),
    ],
)
def test_the_steps_are_those_of_the_plain_trainer(tmp_path, kind, options, cap):
    first, second = values(job(train, 2, tmp_path, kind, options, cap, init=False))
    for distance, plain, held, _, division, _ in (first, second):
        assert distance == 0
        assert held == plain
        assert division == (4, 4)
    assert apart(first[3], second[3]) == 0.0
    assert second[5] is None
    samples, *figures = first[5]
    assert figures == [0, 2, cap.get("over", "device"), "2 x sim:jetson-nano"]
    assert samples == (options["max_steps"] * 32 if kind == "even" else 3 * 80)


def stop(rank, folder, cap_w, stops, resumes):
    """A run whose cap is lowered too far at a step, or that resumes. Returns also what it raised."""
    from dataclasses import replace

    from transformers import TrainerCallback

    from wattune.errors import SafetyStop
    from wattune.integrations.transformers import attach

    made = prepared(folder, tiny_models.texts(384, 12, 12), num_train_epochs=15, logging_steps=500)
    capped = attach(made, device=NANO, cap_w=cap_w)
    error = None

    class Lower(TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            if stops and state.global_step == 20 and rank == 0:
                run = capped.session.run
                run.capped.move_cap(replace(run.limit, limit_w=3.0))

    made.add_callback(Lower())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            made.train(resume_from_checkpoint=resumes)
        except SafetyStop as caught:
            error = str(caught)
    # A run that is resumed after the stop counts what was above the cap before it.
    assert all("readings exceeded the cap" in str(one.message) for one in warned)
    assert not warned or (resumes and error is None)
    record = capped.record
    return (
        error,
        made.state.global_step,
        weights(made.model),
        None if record is None else (record.ended, record.samples),
    )


def test_a_stop_for_safety_comes_at_the_same_step_of_all_ranks_and_the_run_resumes(tmp_path):
    first, second = values(job(stop, 2, tmp_path, CAP_W, True, None, init=False))
    assert first[0] == second[0]
    assert "above the cap of 3 W" in first[0]
    assert first[1] == second[1]
    assert first[3] == ("stopped for safety", 32 * first[1])
    folder = tmp_path / f"checkpoint-{first[1]}"
    assert {"trainer_state.json", "rng_state_0.pth", "rng_state_1.pth"} <= {file.name for file in folder.iterdir()}

    ends = values(job(stop, 2, tmp_path, CAP_W, False, True, init=False))
    assert [end[1] for end in ends] == [180, 180]
    assert ends[0][3] == ("finished", 32 * 180)
    plain = values(job(stop, 2, tmp_path / "plain", None, False, None, init=False))
    assert apart(ends[0][2], plain[0][2]) == 0


def evaluate_first(rank, folder):
    from wattune.integrations.transformers import attach

    made = prepared(folder, tiny_models.texts(64), others={"eval_dataset": tiny_models.texts(32, seed=3)})
    attach(made, device=NANO, cap_w=CAP_W)
    made.evaluate()
    made.train()


def test_a_model_that_an_evaluation_left_without_ddp_is_refused(tmp_path):
    said = refusal(job(evaluate_first, 2, tmp_path, init=False))
    assert "call evaluate() and predict() after train(), not before it" in said


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.support import tiny_models
from wattune.integrations.transformers import attach

made = tiny_models.trainer("out", tiny_models.model(), tiny_models.texts(128), num_train_epochs=2)
capped = attach(made, device="sim:jetson-nano", cap_w=9.2, over="job", record="session.json")
made.train()
if made.is_world_process_zero():
    print("samples", capped.record.samples)
"""


def test_torchrun_starts_the_processes(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(root=ROOT))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 240, "check": False}
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options)
    assert "samples 256" in done.stdout, done.stderr
    assert (tmp_path / "session.json").exists()
