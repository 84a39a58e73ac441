"""The client's side of a fleet on Flower: a mod that holds the board under its cap while any ClientApp trains.

What a client offers and what it is asked to do travel in the messages of training, see ``flower_messages``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from torch.optim.optimizer import register_optimizer_step_post_hook

from wattune.cap import PowerCap
from wattune.devices import ReplayDevice, open_device
from wattune.devices.replay import Noise
from wattune.errors import InputError
from wattune.integrations.flower_messages import (
    BATCH_SIZE,
    JOULES,
    OFFER,
    POINT,
    SECONDS,
    STEPS,
    WATTS,
    offer_text,
)
from wattune.planning.fleet import points_under
from wattune.point import OperatingPoint
from wattune.power.capped_run import CappedRun
from wattune.records import PointRecord, ProfileTable, StepWork


class PowerCapMod:
    """A mod of a ClientApp: trains at the point that the strategy asks for, below ``cap_w`` watts.

        app = ClientApp(mods=[PowerCapMod(6, profile="profile.json")])

    ``profile``: of this model on this board (`wattune profile`); ``device``: a spec, see ``wattune.open_device``. The
    train function takes ``local-steps`` optimizer steps with batches of ``batch-size``, both of which are in the
    message's ConfigRecord; steps are those of torch's optimizers. Its reply's metrics get ``wattune-seconds``,
    ``-joules``, ``-watts`` and ``-steps``. Evaluation runs at the board's safest setting. A simulated board replays the
    profile: each step takes the time and the power of its cell.

    Raises: InputError for a cap or a profile that cannot be used.
    """

    def __init__(
        self,
        cap_w: float | str | PowerCap | None,
        *,
        profile: ProfileTable | str | Path,
        device: str = "auto",
    ):
        self.cap = PowerCap.of(cap_w)
        self.profile = ProfileTable.load(profile) if isinstance(profile, (str, Path)) else profile
        self.device = device

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer what the strategy asks for, or hold the board while the ClientApp works.

        Raises: InputError, SafetyStop, DeviceError.
        """
        if message.metadata.message_type == MessageType.EVALUATE:
            return self._evaluate(message, context, call_next)
        if message.metadata.message_type != MessageType.TRAIN:
            return call_next(message, context)
        if OFFER in message.content:
            return Message(RecordDict({OFFER: self._offer(message)}), reply_to=message)
        return self._train(message, context, call_next)

    def _offer(self, message: Message) -> ConfigRecord:
        question: Any = message.content[OFFER]
        return ConfigRecord({OFFER: offer_text(points_under(self.profile, self.cap, question[BATCH_SIZE]))})

    def _train(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        config: Any = next(iter(message.content.config_records.values()), {})
        if POINT not in config:
            raise InputError("the message asks for no operating point", hint="use FleetStrategy on the server")
        point = PointRecord.model_validate_json(config[POINT]).point
        device, steps = open_device(self.device), 0
        if self.profile.device != device.name:
            device.close()
            raise InputError("the profile is of another device", value=self.profile.device, allowed=device.name)
        if not device.executes_steps:
            device = ReplayDevice(self.profile, Noise(relative=0.0))
        work = self._work(point)

        def stepped(*_: Any) -> None:
            nonlocal steps
            steps += 1
            if not device.executes_steps:
                with device.step(work):
                    pass
            run.check()

        hook = register_optimizer_step_post_hook(stepped)
        try:
            limit = self.cap.at_sensor(device.supply, device.sensor.window_s)
            with CappedRun(device, limit, point.knobs) as run:
                run.start()
                reply = call_next(message, context)
                run.check()
            figures = run.meter.figures()  # a round shorter than the time between two readings gets one at its end
        finally:
            hook.remove()
            device.close()
        if not steps:
            raise InputError("the train function took no step", hint="train with an optimizer of torch")
        metrics = next(iter(reply.content.metric_records.values()), None)
        if metrics is None:
            raise InputError("the train function's reply has no MetricRecord", hint="reply with num-examples in one")
        metrics[SECONDS], metrics[JOULES] = figures.time_s, figures.energy_j
        metrics[WATTS], metrics[STEPS] = figures.energy_j / figures.time_s, steps
        return reply

    def _work(self, point: OperatingPoint) -> StepWork:
        data_type = self.profile.key.data_type if self.profile.key else "fp32"
        (batch, micro) = point.shape
        return StepWork(samples=batch, micro_batch_size=micro, data_type=data_type, phases=(), peak_memory_bytes=0)

    def _evaluate(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        device = open_device(self.device)
        try:
            limit = self.cap.at_sensor(device.supply, device.sensor.window_s)
            with CappedRun(device, limit, device.safest) as run:
                run.start()
                reply = call_next(message, context)
                run.check()
            return reply
        finally:
            device.close()
