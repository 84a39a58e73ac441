"""The boards that come along against what is published about them, with the counted work of real models."""

import functools
import math

import pytest

torch = pytest.importorskip("torch")

from tests.support.device_examples import quiet, run_steps  # noqa: E402
from torch import nn  # noqa: E402

from wattune.algorithms.counting.step_counting import step_work  # noqa: E402
from wattune.devices import SimulatedDevice, builtin_board, open_device  # noqa: E402
from wattune.devices.simulator.roofline import segments  # noqa: E402
from wattune.errors import OutOfDeviceMemory  # noqa: E402
from wattune.point import Knobs  # noqa: E402


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut. Source: He et al., arXiv 1512.03385, figure 2 and section 4.1."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        )
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu_(self.second(self.first(x)) + self.shortcut(x))


def resnet18(pixels):
    """For ImageNet, or with the 3x3 stem that is usual at 32x32 pixels."""
    if pixels == 32:
        layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    else:
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10 if pixels == 32 else 1000))


class ResNet18:
    """What the counting needs to know of a workload."""

    data_type = "fp32"
    host_s_per_sample = 1e-4

    def __init__(self, pixels):
        self.pixels = pixels

    def model(self, seed):
        return resnet18(self.pixels)

    def loss(self, output, target):
        return nn.functional.cross_entropy(output, target)

    def optimizer(self, model, batch_size):
        return torch.optim.Adam(model.parameters())

    def example(self, batch_size):
        return torch.zeros(batch_size, 3, self.pixels, self.pixels), torch.zeros(batch_size, dtype=torch.long)


@functools.cache
def trainable(pixels):
    workload = ResNet18(pixels)
    model = workload.model(0)
    return workload, model, workload.optimizer(model, 8)


@functools.cache
def work(pixels, batch_size):
    return step_work(*trainable(pixels), batch_size=batch_size, micro_batch_size=batch_size)


def measured(device, clock, pixels, batch_size):
    """Seconds a step and the least and largest reading while training."""
    watts = []
    with device.at(Knobs(clock_mhz=clock)):
        run_steps(device, work(pixels, batch_size), 3)
        begin_s = device.now_s()
        with device.every(device.sensor.period_s, lambda: watts.append(device.power_w())):
            run_steps(device, work(pixels, batch_size), 10)
        return (device.now_s() - begin_s) / 10, min(watts), max(watts)


def test_the_counted_work_is_that_of_resnet18():
    # 1.82 GMAC forward an image; backward twice that, but for the gradient of the first layer's input
    assert work(224, 8).flops == pytest.approx(8 * 3 * 2 * 1.82e9, rel=0.05)


def test_resnet18_at_224_takes_what_is_published_on_a_nano():
    # Source: dusty-nv/jetson-inference, docs/pytorch-cat-dog.md: 0.77 s a batch of 8
    step_s, _, _ = measured(open_device("sim:jetson-nano"), 921.6, 224, 8)
    assert step_s == pytest.approx(0.77, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(("clock", "low_w", "high_w"), [(921.6, 5.6, 7.4), (76.8, 2.5, 4.0)])
@pytest.mark.parametrize(("pixels", "batch_size"), [(224, 8), (32, 8), (32, 32), (32, 128)])
def test_a_nano_draws_in_training_what_logs_of_its_rails_add_up_to(clock, low_w, high_w, pixels, batch_size):
    device = SimulatedDevice(quiet())
    truth = device.ground_truth(None)
    _, _, highest_w = measured(device, clock, pixels, batch_size)
    assert low_w < truth.figures().energy_j / truth.figures().time_s < high_w
    assert highest_w < high_w


def test_a_tx2_nx_draws_in_training_what_logs_of_its_rails_add_up_to():
    _, lowest_w, highest_w = measured(open_device("sim:jetson-tx2-nx"), 1300.5, 32, 128)
    assert 7.7 < (lowest_w + highest_w) / 2 < 10.5


def test_resnet18_fits_with_the_batch_that_is_published():
    for name in ("sim:jetson-nano", "sim:jetson-tx2-nx"):
        run_steps(open_device(name), work(32, 128))
        with pytest.raises(OutOfDeviceMemory), open_device(name).step(work(32, 512)):
            pass


# Nano and TX2 NX, ResNet-18. Source: arXiv 2502.18323, Tables 2 and 4: quotients of printed times in which the number
# of samples cancels. Clocks below the highest are inferred, not printed.
NANO, TX2 = "jetson-nano", "jetson-tx2-nx"
RATIOS = [
    ((NANO, 128, 384.0), (NANO, 128, 921.6), 14347 / 6187),
    ((NANO, 128, 691.2), (NANO, 128, 921.6), 8204 / 6187),
    ((NANO, 8, 384.0), (NANO, 8, 921.6), 11345 / 5817),
    ((NANO, 8, 691.2), (NANO, 8, 921.6), 7055 / 5817),
    ((NANO, 32, 844.8), (NANO, 32, 921.6), 4607 / 4170),
    ((TX2, 128, 420.75), (TX2, 128, 1300.5), 7343 / 3021),
    ((TX2, 128, 854.25), (TX2, 128, 1300.5), 3944 / 3021),
    ((TX2, 8, 420.75), (TX2, 8, 1300.5), 7337 / 4086),
    ((TX2, 8, 854.25), (TX2, 8, 1300.5), 4771 / 4086),
    ((TX2, 32, 1122.0), (TX2, 32, 1300.5), 2648 / 2431),
    ((NANO, 128, 921.6), (TX2, 128, 1300.5), 6187 / 3021),
    ((NANO, 8, 921.6), (TX2, 8, 1300.5), 5817 / 4086),
    ((NANO, 32, 921.6), (TX2, 32, 1300.5), 4170 / 2431),
]


@pytest.mark.parametrize(("one", "other", "published"), RATIOS)
def test_times_stand_to_each_other_as_published(one, other, published):
    def seconds(name, batch_size, clock):
        chip, knobs = builtin_board(name).chip("gpu"), Knobs(clock_mhz=clock)
        return math.fsum(p.seconds for p in segments(work(32, batch_size), chip, knobs))

    assert seconds(*one) / seconds(*other) == pytest.approx(published, rel=0.05)


@pytest.mark.parametrize("name", [NANO, TX2])
def test_the_gpu_is_about_ten_times_the_cpu_at_nearly_equal_power(name):
    # Source: arXiv 2502.18323: 50,000 samples, batch size 32, highest clocks
    seconds, watts = [], []
    for processor in ("gpu", "cpu"):
        device = SimulatedDevice(quiet(builtin_board(name)), processor)
        truth = device.ground_truth(None)
        run_steps(device, work(32, 32))
        seconds.append(truth.figures().time_s)
        watts.append(truth.figures().energy_j / seconds[-1])
    assert seconds[1] / seconds[0] == pytest.approx(10, rel=0.1)
    assert watts[1] == pytest.approx(watts[0], rel=0.1)
