"""Trainings of every kind that a guard may run, as a program that old Pythons run too: each named one in a process of
its own, which prints a digest of its weights and its process id."""

import hashlib
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def digest(*modules: nn.Module) -> str:
    """Equal for equal weights, bit for bit."""
    values = b"".join(p.detach().numpy().tobytes() for module in modules for p in module.parameters())
    return hashlib.sha256(values).hexdigest()[:16]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))


def plain() -> str:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        scheduler.step()
    return digest(model)


def accumulation() -> str:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number in range(40):
        (model(torch.randn(4, 8)).square().mean() / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return digest(model)


def gan() -> str:
    generator, critic = nn.Linear(2, 8), network()
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for number in range(50):
        for_critic.zero_grad()
        (critic(generator(torch.randn(4, 2)).detach()) - critic(torch.randn(4, 8))).mean().backward()
        for_critic.step()
        if number % 5 == 4:
            for_generator.zero_grad()
            (-critic(generator(torch.randn(4, 2)))).mean().backward()
            for_generator.step()
    return digest(generator, critic)


def lbfgs() -> str:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(16, 8)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    return digest(model)


class Clipping(torch.optim.SGD):
    """A user's own optimizer."""

    def step(self, closure=None):  # type: ignore[no-untyped-def, override]
        """Clip the gradients, and step."""
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


def subclass() -> str:
    model = network()
    optimizer = Clipping(model.parameters(), lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return digest(model)


def scaled() -> str:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    has_scaler = hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler")  # before torch 2.3 for CUDA alone
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if has_scaler else torch.cuda.amp.GradScaler(enabled=False)
    for _ in range(10):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 8)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    return digest(model)


def in_backward() -> str:
    model = network()
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(10):
        model(torch.randn(4, 8)).square().mean().backward()
    return digest(model)


def workers() -> str:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(32, 8))
    for _ in range(2):
        for (x,) in DataLoader(data, batch_size=4, shuffle=True, num_workers=2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return digest(model)


def transformers() -> str:
    import tempfile

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=8))
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (32, 8))]
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(folder, max_steps=6, report_to=[], save_strategy="no", use_cpu=True)
        Trainer(model, options, train_dataset=rows).train()  # type: ignore[arg-type]
    return digest(model)


ROUNDS = {"plain": 20, "accumulation": 10, "lbfgs": 5, "subclass": 10, "scaled": 10, "workers": 16}
"""Steps of those that have one optimizer, and run under any torch."""

if __name__ == "__main__":
    for name in sys.argv[1:]:
        others = os.fork()
        if others:
            torch.manual_seed(0)
            line = " ".join([name, globals()[name](), str(os.getpid())])
            os.write(1, (line + "\n").encode())  # at once: print() may write in parts, and others write meanwhile
            assert os.waitpid(others, 0)[1] == 0  # its slot may be taken once this process has ended
            break
