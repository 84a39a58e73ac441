"""A training script that knows nothing of wattune: a small network on handwritten digits, one metric an epoch."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=40)
options = parser.parse_args()

torch.manual_seed(options.seed)
images, labels = load_digits(return_X_y=True)
x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
y = torch.tensor(labels)
train, test = slice(0, 1400), slice(1400, None)

model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(32 * 4 * 4, 10)),
)
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)

for epoch in range(options.epochs):
    for rows in torch.randperm(1400).split(options.batch_size):
        loss = nn.functional.cross_entropy(model(x[train][rows]), y[train][rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(x[test]).argmax(1) == y[test]).float().mean()
    torch.save(model.state_dict(), "digits.pt")
    print(f"epoch {epoch}: loss {loss:.4f}, val acc: {accuracy:.4f}")
