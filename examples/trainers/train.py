"""Small programs of other libraries' trainers: `python examples/trainers/train.py NAME [plain | lines]`.

``lines``: with the lines that wattune's pages show for this library. Each prints the digest of the weights that it ends
with, its optimizer steps, its learning rates and its metrics.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

BOARD, CAP_W, EPOCHS = os.environ.get("BOARD", "sim:jetson-tx2"), 5.0, 8
Outcome = tuple[nn.Module, dict[str, Any]]
RECORDS: list[Any] = []
"""The session records of this process."""


def images(count: int = 256) -> TensorDataset:
    """Random images whose class their mean tells."""
    inputs = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, (inputs.mean((1, 2, 3)) > 0).long())


def network(width: int = 8) -> nn.Sequential:
    """A small network with dropout."""
    begin = [nn.Conv2d(3, width, 3, stride=2), nn.ReLU(), nn.Dropout(0.1), nn.Flatten()]
    return nn.Sequential(*begin, nn.Linear(49 * width, 2))


def texts(rows: int = 96) -> list[dict[str, list[int]]]:
    """Rows of tokens, of different lengths."""
    return [{"input_ids": [1 + (7 * row + at) % 60 for at in range(6 + row % 20)]} for row in range(rows)]


def padded(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """A batch of rows, padded to its longest."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.tensor([sample["input_ids"] + [0] * (longest - len(sample["input_ids"])) for sample in samples])
    mask = (ids != 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def llama() -> nn.Module:
    """A tiny Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, pad_token_id=0, attention_dropout=0.1))


def arguments(**others: Any) -> dict[str, Any]:
    """Arguments of a Trainer, with those that a program changes."""
    own = {"per_device_train_batch_size": 8, "num_train_epochs": EPOCHS, "logging_steps": 4, "save_strategy": "no"}
    return {**own, "output_dir": tempfile.mkdtemp(), "report_to": [], "disable_tqdm": True, "use_cpu": True, **others}


def trained(trainer: Any, way: str) -> Outcome:
    """The model of a Trainer or a subclass after its training, and its log without times."""
    from wattune.integrations.transformers import attach

    with attach(trainer, device=BOARD, cap_w=CAP_W) if way == "lines" else nullcontext() as capped:
        trainer.train()
    RECORDS.append(capped and capped.record)
    times = ("runtime", "per_second")
    log = [{k: v for k, v in row.items() if not k.endswith(times)} for row in trainer.state.log_history]
    return trainer.model, {"log": log}


@contextmanager
def session_of(model: nn.Module, optimizer: Any, **others: Any) -> Iterator[Any]:
    """A session that keeps the recipe; its record is kept."""
    import wattune

    options = {"device": BOARD, "cap_w": CAP_W, "keep_recipe": True, **others}
    with wattune.capped(model=model, optimizer=optimizer, **options) as session:
        yield session
    RECORDS.append(session.record)


def transformers(way: str) -> Outcome:
    """Transformers' Trainer: accumulation, a cosine schedule, evaluations."""
    from transformers import Trainer, TrainingArguments

    options = arguments(gradient_accumulation_steps=2, lr_scheduler_type="cosine", eval_strategy="epoch")
    sets = {"train_dataset": texts(), "eval_dataset": texts(16)}
    return trained(Trainer(llama(), TrainingArguments(**options), **sets, data_collator=padded), way)


def trl_sft(way: str) -> Outcome:
    """Supervised fine-tuning by TRL, with LoRA."""
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    options = {"max_length": 32, "dataset_kwargs": {"skip_prepare_dataset": True}, "remove_unused_columns": False}
    return trained(
        SFTTrainer(
            llama(),
            SFTConfig(**arguments(**options, bf16=False, eval_strategy="epoch", gradient_checkpointing=False)),
            train_dataset=dataset(texts()),
            eval_dataset=dataset(texts(16)),
            data_collator=padded,
            processing_class=tokenizer(),
            peft_config=LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"]),
        ),
        way,
    )


def dataset(rows: list[dict[str, Any]]) -> Any:
    """Rows as a data set of Hugging Face."""
    from datasets import Dataset

    return Dataset.from_list(rows)


def tokenizer() -> Any:
    """Words t1 to t63, without a download."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, **{f"t{number}": number for number in range(1, 64)}}
    made = Tokenizer(models.WordLevel(words, unk_token="t63"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="t63", unk_token="t63")


def trl_dpo(way: str) -> Outcome:
    """Preferences by TRL, with LoRA."""
    from peft import LoraConfig
    from trl import DPOConfig, DPOTrainer

    rows = [
        {"prompt": f"t{1 + row % 60} t2", "chosen": f"t{1 + row % 50} t3", "rejected": f"t{1 + row % 40} t4 t5"}
        for row in range(64)
    ]
    lora = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"])
    config = DPOConfig(**arguments(bf16=False, gradient_checkpointing=False))
    return trained(
        DPOTrainer(llama(), args=config, train_dataset=dataset(rows), processing_class=tokenizer(), peft_config=lora),
        way,
    )


def sentence_transformers(way: str) -> Outcome:
    """Sentences that are close, among the others of their batch."""
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.models import Pooling, Transformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from transformers import BertConfig, BertModel

    with tempfile.TemporaryDirectory() as folder:
        sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        BertModel(BertConfig(**sizes, num_attention_heads=4)).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        word = Transformer(folder)
    model = SentenceTransformer(modules=[word, Pooling(32)], device="cpu")
    rows = dataset([{"anchor": f"t{1 + row % 60} t2", "positive": f"t{1 + row % 60} t9 t7"} for row in range(96)])
    options = SentenceTransformerTrainingArguments(**arguments())
    return trained(
        SentenceTransformerTrainer(model, options, train_dataset=rows, loss=MultipleNegativesRankingLoss(model)), way
    )


def lightning(way: str) -> Outcome:
    """Lightning: accumulation, a schedule, validation."""
    import lightning as pl
    from lightning.pytorch.callbacks import Callback

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, at: int) -> torch.Tensor:
            loss = functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, at: int) -> None:
            self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters())
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    callbacks: list[Callback] = []
    if way == "lines":
        from wattune.integrations.lightning import PowerCapCallback

        callbacks = [PowerCapCallback(CAP_W, device=BOARD)]
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(max_epochs=EPOCHS, accumulate_grad_batches=2, accelerator="cpu", callbacks=callbacks, **quiet)
    module = Classifier()
    trainer.fit(module, DataLoader(images(), 8, shuffle=True), DataLoader(images(64), 32))
    RECORDS.extend(one.record for one in callbacks)
    return module, {name: float(value) for name, value in trainer.callback_metrics.items()}


def accelerate(way: str) -> Outcome:
    """A loop of one's own, prepared by Accelerate."""
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), network()
    optimizer, loader = torch.optim.SGD(model.parameters(), 0.05), DataLoader(images(), 16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    return own_epochs(way, model, optimizer, loader, backward=accelerator.backward)


def own_epochs(
    way: str,
    model: nn.Module,
    optimizer: Any,
    loader: Any,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    backward: Callable[[torch.Tensor], None] = torch.Tensor.backward,
) -> Outcome:
    """A loop of one's own; ``loss`` of inputs and labels: cross entropy unless given."""
    loss = loss or (lambda x, y: functional.cross_entropy(model(x), y))
    if way == "lines":
        with session_of(model, optimizer, loader=loader) as session:
            for _ in range(EPOCHS):
                for batch in session.batches():
                    session.backward(loss(batch.x, batch.y))
        return model, {}
    for _ in range(EPOCHS):
        for x, y in loader:
            backward(loss(x, y))
            optimizer.step()
            optimizer.zero_grad()
    return model, {}


def own_loop(way: str) -> Outcome:
    """A loop of one's own."""
    model = network()
    return own_epochs(way, model, torch.optim.Adam(model.parameters()), DataLoader(images(), 16, shuffle=True))


def contrastive(way: str) -> Outcome:
    """In-batch negatives: a loss that has another gradient in parts."""
    model = network()

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(x) @ model(x.flip(3)).T, torch.arange(len(x)))

    loader = DataLoader(images(), 16, shuffle=True)
    return own_epochs(way, model, torch.optim.Adam(model.parameters()), loader, loss=loss)


def gan(way: str) -> Outcome:
    """Two optimizers; its own loop brackets a round of both."""
    maker, judge = nn.Linear(8, 32), nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    first, second = torch.optim.Adam(judge.parameters()), torch.optim.Adam(maker.parameters())
    with session_of(judge, first, batch_size=16) if way == "lines" else nullcontext() as session:
        for _ in range(16 * EPOCHS):
            if session is not None:
                session.begin_step(16)
            real, made = torch.randn(16, 32) + 1, maker(torch.randn(16, 8))
            first.zero_grad()
            functional.softplus(torch.cat([-judge(real), judge(made.detach())])).mean().backward()
            first.step()
            second.zero_grad()
            functional.softplus(-judge(made)).mean().backward()
            second.step()
            if session is not None:
                session.end_step()
    return nn.ModuleList([maker, judge]), {}


def ignite(way: str) -> Outcome:
    """Ignite's engine, whose steps are bracketed."""
    from ignite.engine import Engine, Events

    model = network()
    optimizer, loader = torch.optim.Adam(model.parameters()), DataLoader(images(), 16, shuffle=True)
    with session_of(model, optimizer, batch_size=16) if way == "lines" else nullcontext() as session:

        def step(engine: Engine, batch: Any) -> float:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            return loss.item()

        trainer = Engine(step)
        if session is not None:
            trainer.add_event_handler(Events.ITERATION_STARTED, lambda: session.begin_step(16))
            trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: session.end_step())
        trainer.run(loader, max_epochs=EPOCHS)
        return model, {"loss": trainer.state.output}


def skorch(way: str) -> Outcome:
    """skorch, which has no lines of wattune."""
    from skorch import NeuralNetClassifier

    inputs, labels = images().tensors
    net = NeuralNetClassifier(network, criterion=nn.CrossEntropyLoss, max_epochs=EPOCHS, batch_size=16, verbose=0)
    net.fit(inputs.numpy(), labels.numpy())
    return net.module_, {"valid_loss": net.history[:, "valid_loss"]}


PROGRAMS: dict[str, tuple[str, Callable[[str], Outcome], str]] = {
    "transformers": ("Transformers `Trainer`: accumulation, cosine, evaluations", transformers, "attach"),
    "trl-sft": ("TRL `SFTTrainer`, LoRA", trl_sft, "attach"),
    "trl-dpo": ("TRL `DPOTrainer`, LoRA", trl_dpo, "attach"),
    "sentence-transformers": ("sentence-transformers, in-batch negatives", sentence_transformers, "attach"),
    "lightning": ("Lightning: accumulation, schedule, validation", lightning, "callback"),
    "accelerate": ("Accelerate, own loop", accelerate, "capped"),
    "own-loop": ("own loop", own_loop, "capped"),
    "contrastive": ("own loop, in-batch negatives", contrastive, "capped"),
    "gan": ("own loop, two optimizers (GAN)", gan, "steps"),
    "ignite": ("Ignite `Engine`", ignite, "steps"),
    "skorch": ("skorch", skorch, ""),
}
"""Name -> what it is, how it trains, and which lines of wattune it has: none in skorch."""


def main(name: str, way: str) -> None:
    """Train, and print one line of JSON about it."""
    torch.manual_seed(0)
    rates: list[float] = []
    register_optimizer_step_post_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    model, metrics = PROGRAMS[name][1](way)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    figures = {"weights": digest.hexdigest()[:16], "steps": len(rates), "rates": rates, "metrics": metrics}
    figures["settings"] = sum(len(record.table.cells) for record in RECORDS if record and record.table)
    print("figures " + json.dumps(figures), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PROGRAMS)
    parser.add_argument("way", nargs="?", choices=("plain", "lines"), default="plain")
    asked = parser.parse_args()
    if asked.way == "lines" and not PROGRAMS[asked.name][2]:
        parser.error(f"argument way: lines; allowed with {asked.name}: plain (it has no lines of wattune)")
    main(asked.name, asked.way)
