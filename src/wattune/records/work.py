"""What a step asks of a device, and what a device is set to."""

from __future__ import annotations

from wattune.records.base import BatchSize, NotNegative, Positive, Samples, Value


class Operation(Value):
    """All operations of one kind in one phase of a step, added up.

    ``kind``: "matmul", "convolution", "depthwise", "normalisation", "elementwise", "reduction", "optimizer", "copy",
    "other".
    ``flops`` counts a multiply-add as two; ``bytes`` is what the operations read and write if nothing is fused;
    ``kernels`` is how many were launched.
    """

    kind: str
    flops: NotNegative
    bytes: NotNegative
    kernels: Samples


class PhaseWork(Value):
    """One phase of a step: "forward", "backward", "optimizer" or "host".

    ``host_s`` is time of the CPU alone (loading data), during which the accelerator waits.
    """

    phase: str
    operations: tuple[Operation, ...] = ()
    host_s: NotNegative = 0.0

    @property
    def flops(self) -> float:
        """Floating-point operations of this phase."""
        return sum(o.flops for o in self.operations)

    @property
    def bytes(self) -> float:
        """Bytes that this phase reads and writes."""
        return sum(o.bytes for o in self.operations)

    @property
    def kernels(self) -> int:
        """Operations that this phase launches."""
        return sum(o.kernels for o in self.operations)


class StepWork(Value):
    """What one training step (or one evaluation) asks of a device; the device turns it into time and power.

    ``samples`` is the batch size of the optimizer step, ``micro_batch_size`` that of one forward pass.
    """

    samples: BatchSize
    micro_batch_size: BatchSize
    data_type: str
    phases: tuple[PhaseWork, ...]
    peak_memory_bytes: NotNegative

    @property
    def flops(self) -> float:
        """Floating-point operations of the whole step."""
        return sum(p.flops for p in self.phases)

    @property
    def bytes(self) -> float:
        """Bytes that the whole step reads and writes."""
        return sum(p.bytes for p in self.phases)

    @property
    def kernels(self) -> int:
        """Operations that the whole step launches."""
        return sum(p.kernels for p in self.phases)


class AtPoint(Value):
    """Whatever is said of one point: batch size of the optimizer step and of the forward pass, and the actuator.

    ``micro_batch_size`` is None where it is the batch size. ``clock_mhz`` is None on a device without a clock;
    ``power_limit_w`` stands in its place where that is the actuator.
    """

    batch_size: BatchSize
    micro_batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None

    @property
    def point(self) -> OperatingPoint:
        """The point alone."""
        return OperatingPoint(
            batch_size=self.batch_size,
            micro_batch_size=self.micro_batch_size,
            clock_mhz=self.clock_mhz,
            power_limit_w=self.power_limit_w,
        )


class OperatingPoint(AtPoint):
    """What the device and the training loop are set to."""

    @property
    def setting(self) -> float | None:
        """The value of whichever actuator the device has."""
        return self.clock_mhz if self.clock_mhz is not None else self.power_limit_w
