"""Train a small object detector under a power cap.

python detect.py --device sim:jetson-nano --cap 4.2W --epochs 2
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import wattune

PIXELS, GRID, CLASSES = 64, 16, 2
CELL = PIXELS // GRID

Target = dict[str, Tensor]
"""``boxes`` (objects, 4) as x, y of the centre, width and height in pixels, and ``classes`` (objects,)."""


class Shapes(Dataset[tuple[Tensor, Target]]):
    """Synthetic images with one to four rectangles (class 0) or discs (class 1)."""

    def __init__(self, samples: int, seed: int):
        self._samples, self._seed = samples, seed

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        """Draw the image of this number: always the same one."""
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        image = torch.rand(3, PIXELS, PIXELS, generator=random) * 0.2
        objects = int(torch.randint(1, 5, (), generator=random))
        size = torch.randint(10, 25, (objects, 1), generator=random).expand(-1, 2)
        centre = torch.randint(13, PIXELS - 13, (objects, 2), generator=random)
        classes = torch.randint(CLASSES, (objects,), generator=random)
        rows, columns = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")
        for (x, y), (width, _), kind in zip(centre, size, classes, strict=True):
            across, down = (columns - x).abs(), (rows - y).abs()
            inside = across**2 + down**2 <= (width / 2) ** 2 if kind else (across <= width / 2) & (down <= width / 2)
            image[:, inside] = torch.rand(3, 1, generator=random) * 0.5 + 0.5
        return image, {"boxes": torch.cat([centre, size], dim=1).float(), "classes": classes}


def listed(samples: list[tuple[Tensor, Target]]) -> tuple[Tensor, list[Target]]:
    """A batch: images as one tensor, and the targets, which differ in length, as a list."""
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


class Detector(nn.Module):
    """For each cell: a score for each class, and the box of an object whose centre is there."""

    def __init__(self) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(4, outputs), nn.SiLU()]

        layers = [*block(3, 16, 2), *block(16, 32, 2), *block(32, 64, 1), *block(64, 64, 1), *block(64, 64, 1)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(64, CLASSES + 4, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (batch, classes, grid, grid), and boxes (batch, 4, grid, grid) relative to their cell, in cells."""
        found = self.layers(images)
        return found[:, :CLASSES], found[:, CLASSES:]


def cells_of(target: Target) -> tuple[Tensor, Tensor]:
    """Row and column of the cell of each object."""
    column, row = (target["boxes"][:, :2] / CELL).long().clamp(max=GRID - 1).T
    return row, column


def loss_of(scores: Tensor, boxes: Tensor, targets: list[Target], samples: int) -> Tensor:
    """Mean over the images of the batch: focal loss of the scores, and L1 distance of the boxes."""
    wanted = torch.zeros_like(scores)
    distance = scores.new_zeros(())
    for image, target in enumerate(targets):
        row, column = cells_of(target)
        wanted[image, target["classes"], row, column] = 1
        near = torch.stack([column, row], dim=1).to(boxes) + 0.5
        box = target["boxes"].to(boxes) / CELL
        offset = torch.cat([box[:, :2] - near, box[:, 2:]], dim=1)
        distance = distance + nn.functional.l1_loss(boxes[image, :, row, column].T, offset, reduction="sum")
    cross_entropy = nn.functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    wrong = (scores.sigmoid() - wanted).abs() ** 2
    return ((wrong * cross_entropy).sum() + 0.1 * distance) / samples


@torch.no_grad()
def found_share(model: Detector, data: Shapes) -> float:
    """Share of objects whose cell scores their class highest, and at least 0.3, with a box that overlaps by half."""
    hits = objects = 0
    for image, target in (data[index] for index in range(len(data))):
        scores, boxes = model(image[None])
        row, column = cells_of(target)
        score, kind = scores[0, :, row, column].sigmoid().max(dim=0)
        box = boxes[0, :, row, column].T * CELL
        box[:, :2] += (torch.stack([column, row], dim=1) + 0.5) * CELL
        true = target["boxes"]
        low = torch.maximum(box[:, :2] - box[:, 2:] / 2, true[:, :2] - true[:, 2:] / 2)
        high = torch.minimum(box[:, :2] + box[:, 2:] / 2, true[:, :2] + true[:, 2:] / 2)
        both = (high - low).clamp(min=0).prod(dim=1)
        overlap = both / (box[:, 2:].prod(dim=1) + true[:, 2:].prod(dim=1) - both)
        hits += int(((score > 0.3) & (kind == target["classes"]) & (overlap >= 0.5)).sum())
        objects += len(true)
    return hits / objects


def main() -> None:
    """Train for some epochs, and print what was chosen."""
    parser = argparse.ArgumentParser(description="Train a small object detector under a power cap")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cap", default="4.2W")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    data, held_out = Shapes(arguments.samples, seed=0), Shapes(100, seed=1)
    loader = DataLoader(data, batch_size=32, shuffle=True, collate_fn=listed)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with wattune.capped(
        device=arguments.device,
        cap_w=arguments.cap,
        model=model,
        optimizer=optimizer,
        loader=loader,
        keep_recipe=True,
        record="session.json",
    ) as session:
        for epoch in range(arguments.epochs):
            for batch in session.batches():
                scores, boxes = model(batch.x)
                session.backward(loss_of(scores, boxes, batch.y, batch.samples))
            with session.evaluation():
                print(f"epoch {epoch + 1}: {found_share(model, held_out):.0%} of the objects found")
    print(session.explain())


if __name__ == "__main__":
    main()
