"""Fine-tune a vision transformer under a power cap.

python finetune.py --device sim:jetson-orin-nano --cap 8W --epochs 1
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTConfig, ViTForImageClassification

import wattune

PIXELS = 224


def images(file: Path | None, samples: int) -> TensorDataset:
    """Images as (N, 3, 224, 224) in [-1, 1] and labels; synthetic ones if there is no file."""
    if file is None:
        labels = torch.arange(samples) % 4
        pixels = torch.rand(samples, 3, PIXELS, PIXELS) * 2 - 1
        pixels[:, 0] += (labels / 4)[:, None, None]  # something to learn: the amount of red
        return TensorDataset(pixels, labels)
    with np.load(file) as arrays:
        pixels = torch.from_numpy(arrays["images"]).float() / 127.5 - 1
        return TensorDataset(pixels, torch.from_numpy(arrays["labels"]).long())


def vision_transformer(name: str | None, classes: int) -> ViTForImageClassification:
    """A pretrained model with a new last layer, or one of DeiT-tiny's size with random weights."""
    if name is not None:
        return ViTForImageClassification.from_pretrained(name, num_labels=classes, ignore_mismatched_sizes=True)
    config = ViTConfig(
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768, num_labels=classes
    )
    return ViTForImageClassification(config)


def main() -> None:
    """Train for some epochs, and print what was chosen."""
    parser = argparse.ArgumentParser(description="Fine-tune a vision transformer under a power cap")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cap", default="8W")
    parser.add_argument("--model", help="name of a pretrained ViT (default: random weights)")
    parser.add_argument("--data", type=Path, help="an .npz file of images and labels (default: synthetic images)")
    parser.add_argument("--samples", type=int, default=512, help="number of synthetic images")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    data = images(arguments.data, arguments.samples)
    loader = DataLoader(data, batch_size=arguments.batch_size, shuffle=True)
    model = vision_transformer(arguments.model, classes=int(data.tensors[1].max()) + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
    steps = arguments.epochs * len(loader)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=max(1, steps // 10))
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)

    with wattune.capped(
        device=arguments.device,
        cap_w=arguments.cap,
        model=model,
        optimizer=optimizer,
        loader=loader,
        keep_recipe=True,
        scheduler=[warm_up, decay],
        before_step=lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        record="session.json",
    ) as session:
        for epoch in range(arguments.epochs):
            for batch in session.batches():
                logits = model(pixel_values=batch.x).logits
                loss = torch.nn.functional.cross_entropy(logits, batch.y, label_smoothing=0.1)
                session.backward(loss)
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    print(session.explain())


if __name__ == "__main__":
    main()
