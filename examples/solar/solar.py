"""Train on the watts of a solar panel, and rest while its battery is low. See README.md."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wattune

DAY_S, PEAK_W, LEAST_W, STOP, RESUME = 60.0, 12.0, 4.0, 0.3, 0.5


class SolarCap:
    """Cap in watts at a time: the panel's output, or nothing below LEAST_W, and while the battery is low."""

    def __init__(self, panel: Path | None, gauge: Path | None):
        self.panel, self.gauge, self.recovers = panel, gauge, False

    def __call__(self, time_s: float) -> float:
        """Watts that training may draw, in whole ones: after each lowering the board rests for about two seconds."""
        charge = self.charge(time_s)
        # Two thresholds: with one, training would stop and start at every step of the gauge.
        self.recovers = charge < (RESUME if self.recovers else STOP)
        watts = math.floor(self.panel_w(time_s))
        return 0.0 if self.recovers or watts < LEAST_W else watts

    def panel_w(self, time_s: float) -> float:
        """Output of the panel in watts; without a file that of a short day and night."""
        if self.panel is not None:
            return float(self.panel.read_text()) / 1e6  # the kernel counts microwatts
        return PEAK_W * max(0.0, math.sin(2 * math.pi * time_s / DAY_S))

    def charge(self, time_s: float) -> float:
        """Charge of the battery from 0 to 1; without a file it follows a short day."""
        if self.gauge is not None:
            return float(self.gauge.read_text()) / 100
        return 0.5 + 0.3 * math.sin(2 * math.pi * time_s / DAY_S - 0.7)


def main() -> None:
    """Train a small network, and print how long it rested."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="sim:jetson-nano")
    options.add_argument("--panel", type=Path, help="file with the panel's microwatts")
    options.add_argument("--gauge", type=Path, help="file with the battery's percent")
    options.add_argument("--epochs", type=int, default=40)
    chosen = options.parse_args()
    x = torch.randn(2048, 3, 32, 32)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(x, (x.mean((1, 2, 3)) > 0).long()), batch_size=64, shuffle=True)
    cap = SolarCap(chosen.panel, chosen.gauge)
    with wattune.capped(
        device=chosen.device, cap_w=cap, model=model, optimizer=optimizer, loader=loader, record="session.json"
    ) as session:
        for _ in range(chosen.epochs):
            for batch in session.batches():
                session.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
    record = session.record
    print(f"{record.samples} samples in {record.time_s:.0f} s, of which it rested {record.paused_s:.0f} s")


if __name__ == "__main__":
    main()
