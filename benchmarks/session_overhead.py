"""Overhead of a session on a real loop once it has found its point: ``wattune.capped`` and both callbacks.

The same model is trained in two threads that take turns of several steps in random order: by the plain loop (or
Trainer), and by the same one in an open session at the whole batch. The CPU time of the active thread is compared,
since other processes disturb it less than wall time: medians of the pairs, with a confidence band of the median. The
CPU time of the thread that reads the sensor is added. Steps of about 2, 10 and 50 ms show the share. With a model of
one small layer, the difference is the session's time per step, for any model, with the least noise: ``overhead`` is
that relative to each step, and ``least_step_s`` the step time of which the upper end of its band is 1 %.
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
"""Width and depth of the models, steps per turn, and pairs of turns: short and many, since the machine is shared."""

OnStep = Callable[[], None]


class Texts(Dataset[dict[str, Tensor]]):
    """Data set of random tokens with a class per row."""

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
    """Classifier of embedded tokens with ``depth`` layers; it returns its loss, as Transformers' models do."""

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
    """File device that records the CPU time of the thread that reads it."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.read_at: list[tuple[float, float]] = []

    def power_w(self) -> float:
        """The file's milliwatts as watts."""
        self.read_at.append((time.perf_counter(), time.thread_time()))
        return super().power_w()


class StopTurns(Exception):
    """End of an infinite training loop."""


class Turns(threading.Thread):
    """A run in a thread of its own, which is paused between its turns.

    ``train`` is called with the function that it calls after each step.
    """

    def __init__(self, train: Callable[[OnStep], None]):
        super().__init__(daemon=True)
        self._train = train
        self._go: SimpleQueue[int] = SimpleQueue()
        self._done: SimpleQueue[float | BaseException] = SimpleQueue()
        self._left = 0
        self._begun_s = 0.0

    def take(self, steps: int) -> float:
        """Run the next ``steps`` steps; return the CPU seconds per step."""
        self._go.put(steps)
        result = self._done.get()
        if isinstance(result, BaseException):
            raise result
        return result / steps

    def end(self) -> None:
        """End the thread."""
        self._go.put(0)
        self.join()

    def run(self) -> None:
        """Run the turns."""
        torch.set_flush_denormal(True)  # random data leads to denormal numbers, which would slow one of the two
        try:
            self._wait()
            self._train(self._step)
        except StopTurns:
            pass
        except BaseException as error:  # noqa: BLE001 - `take` raises it
            self._done.put(error)

    def _step(self) -> None:
        self._left -= 1
        if not self._left:
            self._done.put(time.thread_time() - self._begun_s)
            self._wait()

    def _wait(self) -> None:
        self._left = self._go.get()
        if not self._left:
            raise StopTurns
        self._begun_s = time.thread_time()


def in_a_loop(width: int, depth: int, device: TimedDevice | None, sessions: list[Any], on_step: OnStep) -> None:
    """Train in a plain loop, in ``wattune.capped`` if there is a device."""
    from wattune.online import capped

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
    """Train with Lightning's Trainer, with ``PowerCapCallback`` if there is a device."""
    import lightning

    from wattune.integrations.lightning import PowerCapCallback

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

    cap = PowerCapCallback(10, device=device) if device is not None else None
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
    """Train with Transformers' Trainer, after ``attach`` if there is a device."""
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
        trainer.log = lambda *_, **__: None  # not needed
        trainer.train()


LOOPS = {"capped": in_a_loop, "lightning": in_lightning, "transformers": in_transformers}


@contextmanager
def pair(name: str, width: int, depth: int) -> Iterator[tuple[Turns, Turns, TimedDevice, list[Any]]]:
    """Context of the plain run, the one in a session, its device, and the session once there is one."""
    sessions: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in_power0_input"
        path.write_text("4321\n")
        device = TimedDevice(path)
        loop = LOOPS[name]
        plain = Turns(lambda on_step: loop(width, depth, None, [], on_step))
        in_session = Turns(lambda on_step: loop(width, depth, device, sessions, on_step))
        for turns in (plain, in_session):
            turns.start()
        try:
            yield plain, in_session, device, sessions
        finally:
            plain.end()
            in_session.end()


def measure(name: str, size: str) -> dict[str, Any]:
    """Measure a session's time in one kind of loop, at one size of the model."""
    width, depth, steps, pairs = SIZES[size]
    times: list[tuple[float, float]] = []
    shuffle = random.Random(0)
    with pair(name, width, depth) as (plain, in_session, device, sessions):
        plain.take(steps)
        in_session.take(1)
        run = sessions[0].run
        run.can_split = False  # so that both run the same passes
        while run.explorer.probing:
            in_session.take(1)
        begin = len(device.read_at) - 1
        while len(times) < pairs:
            first, second = (plain, in_session) if shuffle.random() < 0.5 else (in_session, plain)
            step_s = {first: first.take(steps), second: second.take(steps)}
            times.append((step_s[in_session], step_s[plain]))
        (wall_from, cpu_from), (wall_to, cpu_to) = device.read_at[begin], device.read_at[-2]
    thread = (cpu_to - cpu_from) / (wall_to - wall_from)
    extra = spread([session_s - plain_s for session_s, plain_s in times])
    return {
        "step_s": statistics.median(plain_s for _, plain_s in times),
        "extra_s": extra,
        "sampling_thread": thread,
        "pairs": pairs,
    }


def spread(values: list[float]) -> dict[str, Any]:
    """Median, and its 95 % confidence band (by rank)."""
    ranked, away = sorted(values), 0.98 * math.sqrt(len(values))
    band = [
        ranked[max(0, math.floor(len(values) / 2 - away))],
        ranked[min(len(values) - 1, math.ceil(len(values) / 2 + away))],
    ]
    return {"median": statistics.median(values), "band": band}


def overhead(names: Iterable[str] = tuple(LOOPS), sizes: Iterable[str] = tuple(SIZES)) -> dict[str, Any]:
    """Measure every kind of loop and size of the model."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries warn about short runs
        for name in names:
            figures = {size: measure(name, size) for size in sizes}
            tiny = figures["tiny"]
            most_s = tiny["extra_s"]["band"][1]
            for one in figures.values():
                one["overhead"] = tiny["extra_s"]["median"] / one["step_s"] + one["sampling_thread"]
            results[name] = {**figures, "least_step_s": most_s / (AIM - tiny["sampling_thread"])}
    return results


def main() -> None:
    """Measure, and store the results."""
    keep("session_overhead", {"aim": AIM, **overhead()})


if __name__ == "__main__":
    main()
