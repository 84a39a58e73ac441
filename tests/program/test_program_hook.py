"""The hook in programs: it counts their rounds, and changes nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.stamped_training import ROUNDS

from wattune.program.hook import sitecustomize
from wattune.program.hook.sitecustomize import DEAD, SLOT, SLOTS, VARIABLE, Rounds, Stamps
from wattune.program.rounds import HOOK, StepPage

TRAINING = Path(__file__).parent.parent / "support" / "stamped_training.py"


def run(*words: object, python: str = sys.executable, **more: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run([python, *map(str, words)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digests(out: str, kinds: list[str]) -> dict[str, tuple[str, int]]:
    """Digest and process of each training: a Trainer prints other lines, with times."""
    return {line[0]: (line[1], int(line[2])) for line in map(str.split, out.splitlines()) if line[0] in kinds}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("python", "kinds"),
    [
        (sys.executable, [*ROUNDS, "gan", "in_backward"]),
        (sys.executable, ["transformers"]),
        *((str(python), [*ROUNDS]) for python in Path(os.environ.get("WATTUNE_OLD_TORCH", "/no")).glob("*/bin/python")),
    ],
)
def test_weights_are_equal_bit_for_bit(python, kinds):
    alone = digests(run(TRAINING, *kinds, python=python), kinds)
    with StepPage() as page, page.stamped():
        watched = digests(run(TRAINING, *kinds, python=python), kinds)
        seen = {stamp.pid: stamp.rounds for stamp in page._read()}
    assert {kind: digest for kind, (digest, _) in watched.items()} == {kind: alone[kind][0] for kind in kinds}
    assert seen.keys() == {pid for _, pid in watched.values()}, "workers of a loader make no steps"
    assert all(seen[watched[kind][1]] == ROUNDS[kind] for kind in kinds if kind in ROUNDS)


COMPILED = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.compile(optimizer.step, backend="eager")()
"""


@pytest.mark.slow
def test_a_compiled_step_is_counted_without_a_warning():
    words = [sys.executable, "-c", COMPILED]
    with StepPage() as page, page.stamped():
        done = subprocess.run(words, capture_output=True, text=True)
        assert [one.rounds for one in page._read()] == [1]
    assert (done.returncode, "getpid" in done.stderr) == (0, False), done.stderr


def test_programs_without_torch_are_as_they_were(tmp_path):
    # An environment has finders of its own, such as that of setuptools.
    names = "[type(one).__name__ for one in sys.meta_path if not hasattr(one, '__name__')]"
    text = f"import json, sys; print(json.dumps([sys.path, {names}]))"
    with StepPage() as page, page.stamped():
        path, finders = json.loads(run("-c", text))
        assert page.read() is None
    finders.remove("Finder")
    assert [path, finders] == json.loads(run("-c", text)), "a finder is all that is new"


def test_the_users_own_sitecustomize_runs_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.own = __file__\n")
    with StepPage() as page, page.stamped():
        both = os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)])
        out = run("-c", "import sys, sitecustomize; print(sys.own, sitecustomize.__file__)", PYTHONPATH=both)
    assert out.split() == 2 * [str(tmp_path / "sitecustomize.py")]


@pytest.mark.parametrize("has_own", [True, False])
def test_python_2_is_left_alone(tmp_path, has_own):
    python = shutil.which("python2.7")
    if python is None or subprocess.run([python, "-V"], capture_output=True).returncode != 0:
        pytest.skip("needs a Python 2.7 on PATH")
    if has_own:
        (tmp_path / "sitecustomize.py").write_text("import sys\nsys.own = __file__\n")
    text = "import json, sys; print([getattr(sys, 'own', None), len(sys.meta_path)])"
    with StepPage() as page, page.stamped():
        both = os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)])
        environment = {**os.environ, "PYTHONPATH": both, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([python, "-c", text], env=environment, capture_output=True, text=True)
    own = str(tmp_path / "sitecustomize.py") if has_own else None
    assert (done.stdout, done.stderr) == (f"[{own!r}, 0]\n", "")


@pytest.mark.parametrize("path", ["/no/such/file", "/", "/dev/null", ""])
def test_a_page_that_cannot_be_used_changes_nothing(tmp_path, path):
    fake_torch(tmp_path, has_hooks=True)
    both = os.pathsep.join([str(HOOK), str(tmp_path)])
    assert run("-c", STEPS, PYTHONPATH=both, **{VARIABLE: path}) == "3\n"


STEPS = """
from torch.optim.optimizer import Optimizer
class Own(Optimizer):
    steps = 0
    def step(self, closure=None):
        self.steps += 1
        return self.steps
one = Own()
print([one.step() for _ in range(3)][-1])
"""


def fake_torch(folder: Path, *, has_hooks: bool) -> None:
    (folder / "torch" / "optim").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("")
    (folder / "torch" / "optim" / "__init__.py").write_text("")
    text = "class Optimizer:\n    def __init__(self):\n        pass\n"
    if has_hooks:
        text += "def register_optimizer_step_post_hook(hook):\n    pass\n"
    (folder / "torch" / "optim" / "optimizer.py").write_text(text)


def test_before_torch_2_the_step_of_a_class_is_counted(tmp_path):
    fake_torch(tmp_path, has_hooks=False)
    with StepPage() as page, page.stamped():
        both = os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)])
        assert run("-c", STEPS, PYTHONPATH=both) == "3\n"
        assert [one.rounds for one in page._read()] == [3]


def marks_of(optimizers: Iterable[int]) -> list[int]:
    """The marker of each round, with these optimizers' steps."""
    marks: list[int] = []
    rounds = Rounds(marks.append)
    for one in optimizers:
        rounds.count(one)
    return marks


def test_a_generators_step_ends_a_round():
    assert marks_of(12 * [1, 1, 1, 1, 1, 2]) == 20 * [0] + 9 * [1], "from the generator's fourth step on"


def test_optimizers_that_step_equally_often_are_one_round():
    assert marks_of(50 * [1, 2, 3, 4, 5, 6]) == 50 * [0]


def test_each_of_many_optimizers_in_turn_is_found_as_soon():
    marks = marks_of(one for one in range(8) for _ in range(5 * DEAD))
    assert [marks.count(number) for number in range(8)] == [5 * DEAD, *7 * [4 * DEAD]]


def test_an_optimizer_that_comes_back_was_not_dropped():
    times = DEAD + 50
    assert max(marks_of(20 * (times * [1] + times * [2]))) == 2, "alternating ones are told apart by the second change"


def test_an_optimizer_at_the_place_of_an_earlier_one_has_not_come_back():
    marks: list[int] = []
    rounds = Rounds(marks.append)
    places = [Path(), Path()]
    for _ in range(8):
        places.reverse()
        rounds._forget(id(places[0]))  # what was there before is gone
        for _ in range(5 * DEAD):
            rounds.step(places[0])
        rounds._forget(id(places[0]))
    assert [marks.count(number) for number in range(8)] == [5 * DEAD, *7 * [4 * DEAD]]


def test_an_optimizer_that_is_gone_is_noticed():
    class Optimizer:
        pass

    rounds, optimizer = Rounds([].append), Optimizer()
    rounds.step(optimizer)
    del optimizer
    assert rounds._is_gone


def test_nothing_is_raised_into_the_program():
    def fails(marker: int) -> None:
        raise OSError(marker)

    Rounds(fails).step(object())


def test_more_processes_than_slots(tmp_path, monkeypatch):
    page = tmp_path / "page"
    page.write_bytes(b"\0" * SLOTS * SLOT)
    stamps = Stamps(str(page))

    def alive(path: str) -> bool:
        return int(path.split("/")[-1]) in living

    monkeypatch.setattr(sitecustomize, "os", SimpleNamespace(getpid=lambda: pid, path=SimpleNamespace(exists=alive)))
    living = range(1, SLOTS + 1)
    for pid in range(1, SLOTS + 2):  # noqa: B007 - getpid tells it
        stamps.stamp(0)
    assert {one[0] for one in slots(page)} == set(living), "the last one has no slot, and writes none"
    living, pid = range(2, SLOTS + 1), SLOTS + 9
    stamps.stamp(0)
    assert {one[0] for one in slots(page)} == {*living, pid}, "a slot of a process that has ended is free"


def slots(page: Path) -> list[tuple[int, int, float, int]]:
    import struct

    return list(struct.iter_unpack(sitecustomize.FORMAT, page.read_bytes()))
