"""What a session costs a real loop once it has found its point, of ``wattune.capped`` and of both callbacks.

The same model is trained twice at once, in two threads that take turns of some steps each, in random order: by the
plain loop (or Trainer), and by the same one in an open session at the whole batch. Compared is the processor time of
the thread whose turn it is, which other processes disturb less than they do the wall's: medians of the pairs, with
quartiles, and a band in which the median itself lies. The thread that reads the sensor is added. Steps of about 2, 10
and 50 ms show the share; with a model of one small layer the difference is what a session takes for a step, whatever
the model, with the least noise: ``overhead`` is that over each step, and ``least_step_s`` the step of which the upper
end of its band is 1 %.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from benchmarks.metering import FileDevice
from benchmarks.timing import keep

BATCH_SIZE, TOKENS, CLASSES = 32, 16, 5
PASS_STEPS = 400
AIM = 0.01

SIZES = {"tiny": (4, 0, 5, 400), "2 ms": (128, 1, 2, 200), "10 ms": (512, 1, 1, 150), "50 ms": (768, 3, 1, 40)}
"""Width and depth of the models, steps of a turn, and pairs of turns: short ones and many, since others run here."""

OnStep = Callable[[], None]


class Texts(Dataset[dict[str, Tensor]]):
    """Rows of random tokens with a class."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        samples = PASS_STEPS * BATCH_SIZE
        self.ids = torch.randint(0, 64, (samples, TOKENS), generator=generator)
        self.labels = torch.randint(0, CLASSES, (samples,), generator=generator)
        self.mask = torch.ones(TOKENS, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "attention_mask": self.mask, "labels": self.labels[index]}


class Classifier(nn.Module):
    """Embedded tokens through so many layers; it gives its loss, as models of Transformers do."""

    main_input_name = "input_ids"

    def __init__(self, width: int, depth: int):
        super().__init__()
        torch.manual_seed(0)
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.embedding = nn.Embedding(64, width)
        self.layers = nn.Sequential(*layers, nn.Linear(width, CLASSES))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The mean loss over the rows."""
        outputs = self.layers(self.embedding(input_ids)).mean(1)
        return {"loss": functional.cross_entropy(outputs, labels)}


class TimedDevice(FileDevice):
    """Notes how much processor time the thread has taken that reads it."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.read_at: list[tuple[float, float]] = []

    def power_w(self) -> float:
        """The file's milliwatts as watts."""
        self.read_at.append((time.perf_counter(), time.thread_time()))
        return super().power_w()


class Enough(Exception):
    """Ends a loop that would go on for ever."""


class Turns(threading.Thread):
    """A training in a thread of its own, which stands still but for its turns.

    ``train`` is called with what it has to call after each of its steps.
    """

    def __init__(self, train: Callable[[OnStep], None]):
        super().__init__(daemon=True)
        self._train = train
        self._go: SimpleQueue[int] = SimpleQueue()
        self._done: SimpleQueue[float | BaseException] = SimpleQueue()
        self._left = 0
        self._begun_s = 0.0

    def take(self, steps: int) -> float:
        """Processor seconds a step of the next so many steps."""
        self._go.put(steps)
        found = self._done.get()
        if isinstance(found, BaseException):
            raise found
        return found / steps

    def end(self) -> None:
        """No turn any more."""
        self._go.put(0)
        self.join()

    def run(self) -> None:
        """Take turns."""
        torch.set_flush_denormal(True)  # what is not learned here ends in numbers that take long, in one of both
        try:
            self._wait()
            self._train(self._step)
        except Enough:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised where the turn was given
            self._done.put(error)

    def _step(self) -> None:
        self._left -= 1
        if not self._left:
            self._done.put(time.thread_time() - self._begun_s)
            self._wait()

    def _wait(self) -> None:
        self._left = self._go.get()
        if not self._left:
            raise Enough
        self._begun_s = time.thread_time()


def in_a_loop(width: int, depth: int, device: TimedDevice | None, sessions: list[Any], on_step: OnStep) -> None:
    """A loop of one's own, in ``wattune.capped`` where there is a device."""
    from wattune.session import capped

    model = Classifier(width, depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Texts(), batch_size=BATCH_SIZE, shuffle=True)
    if device is None:
        while True:
            for batch in loader:
                optimizer.zero_grad()
                model(**batch)["loss"].backward()
                optimizer.step()
                on_step()
    with capped(device=device, cap_w=10, model=model, optimizer=optimizer, loader=loader, keep_recipe=True) as session:
        sessions.append(session)
        while True:
            for part in session.batches():
                session.backward(model(**part.data)["loss"])
                if part.last:
                    on_step()


def in_lightning(width: int, depth: int, device: TimedDevice | None, sessions: list[Any], on_step: OnStep) -> None:
    """Lightning's Trainer, with ``PowerCap`` where there is a device."""
    import lightning

    from wattune.integrations.lightning import PowerCap

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Classifier(width, depth)

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return self.inner(**batch)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    class Stamp(lightning.Callback):
        steps = 0

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if device is not None and not sessions:
                sessions.append(cap.session)
            if trainer.global_step > self.steps:  # not after the parts of a step
                self.steps = trainer.global_step
                on_step()

    cap = PowerCap(10, device=device, keep_recipe=True) if device is not None else None
    trainer = lightning.Trainer(
        max_epochs=-1,
        accelerator="cpu",
        callbacks=[*([cap] if cap else []), Stamp()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(Texts(), batch_size=BATCH_SIZE, shuffle=True))


def in_transformers(width: int, depth: int, device: TimedDevice | None, sessions: list[Any], on_step: OnStep) -> None:
    """Transformers' Trainer, after ``attach`` where there is a device."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from wattune.integrations.transformers import attach

    class Stamp(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if device is not None and not sessions:
                sessions.append(capped.session)
            on_step()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH_SIZE,
            num_train_epochs=1000,
            save_strategy="no",
            logging_steps=500,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(Classifier(width, depth), arguments, train_dataset=Texts())
        capped = attach(trainer, device=device, cap_w=10) if device is not None else None
        trainer.add_callback(Stamp())
        trainer.log = lambda *_, **__: None  # nobody reads it
        trainer.train()


LOOPS = {"capped": in_a_loop, "lightning": in_lightning, "transformers": in_transformers}


@contextmanager
def pair(name: str, width: int, depth: int) -> Iterator[tuple[Turns, Turns, TimedDevice, list[Any]]]:
    """The plain training, the one in a session, its device, and the session once there is one."""
    sessions: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in_power0_input"
        path.write_text("4321\n")
        device = TimedDevice(path)
        loop = LOOPS[name]
        plain = Turns(lambda on_step: loop(width, depth, None, [], on_step))
        held = Turns(lambda on_step: loop(width, depth, device, sessions, on_step))
        for turns in (plain, held):
            turns.start()
        try:
            yield plain, held, device, sessions
        finally:
            plain.end()
            held.end()


def measured(name: str, size: str) -> dict[str, Any]:
    """What a session takes in one kind of loop, at one size of the model."""
    width, depth, steps, pairs = SIZES[size]
    found: list[tuple[float, float]] = []
    shuffle = random.Random(0)
    with pair(name, width, depth) as (plain, held, device, sessions):
        plain.take(steps)
        held.take(1)
        governor = sessions[0].governor
        governor.can_split = False  # so that both run the same passes
        while governor.prober.probing:
            held.take(1)
        begun = len(device.read_at) - 1
        while len(found) < pairs:
            first, second = (plain, held) if shuffle.random() < 0.5 else (held, plain)
            taken = {first: first.take(steps), second: second.take(steps)}
            found.append((taken[held], taken[plain]))
        (wall_from, cpu_from), (wall_to, cpu_to) = device.read_at[begun], device.read_at[-2]
    thread = (cpu_to - cpu_from) / (wall_to - wall_from)
    extra = spread([held_s - plain_s for held_s, plain_s in found])
    share = spread([held_s / plain_s - 1 for held_s, plain_s in found])
    return {
        "step_s": statistics.median(plain_s for _, plain_s in found),
        "extra_s": extra,
        "paired": share,
        "sampling_thread": thread,
        "pairs": pairs,
    }


def spread(values: list[float]) -> dict[str, Any]:
    """Median and quartiles, and between what the median itself lies, with 95 % (by rank)."""
    low, middle, high = statistics.quantiles(values, n=4)
    ranked, away = sorted(values), 0.98 * math.sqrt(len(values))
    band = [
        ranked[max(0, math.floor(len(values) / 2 - away))],
        ranked[min(len(values) - 1, math.ceil(len(values) / 2 + away))],
    ]
    return {"median": middle, "quartiles": [low, high], "band": band}


def overhead(names: Iterable[str] = tuple(LOOPS), sizes: Iterable[str] = tuple(SIZES)) -> dict[str, Any]:
    """All of it: by kind of loop and size of the model."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say of short trainings
        for name in names:
            found = {size: measured(name, size) for size in sizes}
            tiny = found["tiny"]
            most_s = tiny["extra_s"]["band"][1]
            for one in found.values():
                one["overhead"] = tiny["extra_s"]["median"] / one["step_s"] + one["sampling_thread"]
            results[name] = {**found, "least_step_s": most_s / (AIM - tiny["sampling_thread"])}
    return results


def main() -> None:
    """Measure and keep."""
    keep("session_overhead", {"aim": AIM, **overhead()})


if __name__ == "__main__":
    main()
