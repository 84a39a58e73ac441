"""However a session ends, its checkpoint and the board are as promised, and a folder has one process at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.sessions import board, perceptron, session_of, train

from wattune.errors import OutputError
from wattune.records import SessionRecord

SCRIPT = """
import os, signal, sys
import torch
from tests.support.sessions import board, loss_of, perceptron, session_of

class SGD(torch.optim.SGD):
    steps = 0

    def step(self, closure=None):
        SGD.steps += 1
        if SGD.steps == 7 and {inside}:
            os.kill(os.getpid(), {number})
        return super().step(closure)

model = perceptron()
options = {{"checkpoint": "c", "record": "r.json", "resume": True}}
with session_of(model, optimizer=SGD(model.parameters(), lr=0.1), **options) as session:
    os.chdir("/")
    for batch in session.batches():
        if SGD.steps == 7 and not {inside}:
            os.kill(os.getpid(), {number})
        session.backward(loss_of(model, batch))
print("went on")
"""


def run(folder: Path, number: int, *, inside: bool) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(number=int(number), inside=inside)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_the_process_leaves_a_checkpoint(tmp_path, number, inside):
    done = run(tmp_path, number, inside=inside)
    assert (done.returncode, done.stdout) == (-number, "")
    assert "there is no checkpoint" in done.stderr
    record = SessionRecord.load(tmp_path / "r.json")
    assert (record.ended, record.samples) == ("interrupted", 7 * 32)
    assert number.name in record.reason
    model = perceptron()
    with session_of(model, checkpoint=tmp_path / "c", resume=True) as session:
        assert session.progress.samples == 7 * 32
        assert train(session, model) == 640 - 7 * 32
    assert not list(tmp_path.glob(".*"))  # no lock, and nothing half written


@pytest.mark.slow
def test_a_signal_that_the_user_handles_stays_the_users(tmp_path):
    script = SCRIPT.format(number=int(signal.SIGTERM), inside=False)
    script = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('mine'))\n{script}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "mine")


def test_a_session_without_resume_keeps_the_earlier_checkpoint(tmp_path):
    path, model = tmp_path / "c.safetensors", perceptron()
    with session_of(model, checkpoint=path) as session:
        train(session, model)
    before = path.read_bytes()
    with pytest.warns(UserWarning, match=r"an earlier session is kept in .*c-2\.safetensors"):
        with session_of(checkpoint=path):
            pass
    assert (tmp_path / "c-2.safetensors").read_bytes() == before


def test_a_resume_that_finds_nothing_says_so(tmp_path, caplog):
    session_of(checkpoint=tmp_path / "missing", resume=True)
    assert f"there is no checkpoint {tmp_path / 'missing'} to resume from" in caplog.text


def test_a_checkpoint_has_one_process_at_a_time(tmp_path):
    path = tmp_path / "c"
    script = (
        "import sys, time, pathlib, wattune.files as f; held = f.Held(pathlib.Path(sys.argv[1])); print(1, flush=True);"
        "time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "1\n"
    with pytest.raises(OutputError, match=r"another process works on this: .*c"):
        session_of(checkpoint=path).__enter__()
    holder.kill()
    holder.communicate()
    with session_of(checkpoint=path):
        with pytest.raises(OutputError, match="another process works on this"):
            session_of(checkpoint=path, device=board()).__enter__()
