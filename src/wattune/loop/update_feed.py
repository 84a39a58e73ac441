"""The updates of a session while it trains: to the log, and to the user's own functions."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from wattune.errors import DeviceError
from wattune.point import OperatingPoint
from wattune.power.run_update import RunUpdate
from wattune.tracking.trackers import OnUpdate

if TYPE_CHECKING:
    from wattune.loop.session import Session

logger = logging.getLogger("wattune")


class UpdateFeed:
    """Sends updates of a session, from its own thread and between its steps, and logs what a person should know.

    A function that fails is not called again, with a warning: training is worth more than a chart of it.
    """

    def __init__(self, session: Session, listeners: Sequence[OnUpdate]):
        self._session = session
        self._listeners = list(listeners)
        self._before_s = self._before_j = 0.0
        self._power_w: float | None = None
        self._told = 0  # events of the guard and the board that are in the log

    def point(self, point: OperatingPoint, reason: str) -> None:
        """Tell that training is at another point from now on."""
        verb = "Measuring" if self._session.run.controller.probing else "Training at"
        logger.info("%s %s%s: %s", verb, point, self._session.on_ranks(point.batch_size), reason)
        self._send("point", reason)

    def look(self) -> None:
        """Tell the present state."""
        self._log_events()
        self._send("reading")

    def end(self) -> None:
        """Tell that the session is over."""
        session, meter = self._session, self._session.run.capped.meter
        self._log_events()
        how = session.ended if session.reason is None else f"{session.ended}: {session.reason}"
        logger.info("Session %s after %d samples in %.3g s", how, session.samples, meter.elapsed_s)
        self._send("end", how)

    def _send(self, event: Literal["reading", "point", "end"], reason: str = "") -> None:
        if not self._listeners:
            return
        update = self._update(event, reason)
        for listener in tuple(self._listeners):
            try:
                listener(update)
            except Exception as error:  # noqa: BLE001 - the user's own function may raise anything
                self._listeners.remove(listener)
                text = (str(error).strip() or type(error).__name__).splitlines()[0]
                warnings.warn(
                    f"log_to= failed and is not called again ({type(error).__name__}: {text}); training continues",
                    stacklevel=2,
                )

    def _update(self, event: Literal["reading", "point", "end"], reason: str) -> RunUpdate:
        session = self._session
        run, capped = session.run, session.run.capped
        time_s, energy_j = capped.meter.elapsed_s, self._before_j
        try:
            figures = capped.meter.figures()
        except DeviceError:  # no reading yet, or no more
            pass
        else:
            time_s, energy_j = figures.time_s, figures.energy_j
            sensor = run.device.sensor
            if self._power_w is None or time_s - self._before_s >= max(sensor.window_s, sensor.period_s):
                self._power_w = max(0.0, energy_j - self._before_j) / max(time_s - self._before_s, 1e-9)
                self._before_s, self._before_j = time_s, energy_j
        return RunUpdate(
            event=event,
            time_s=max(0.0, time_s),
            samples=session.samples,
            steps=run.steps,
            passes=session.passes,
            power_w=self._power_w,
            energy_j=energy_j,
            temperature_c=capped.monitor.temperature_c,
            cap_w=capped.limit.limit_w,
            point=session.point,
            probing=run.controller.probing,
            device=run.device.name,
            kind=run.device.kind,
            reason=reason,
        )

    def _log_events(self) -> None:
        monitor = self._session.run.capped.monitor
        for event in monitor.since(self._told):
            logger.warning("%s after %.3g s: %s", event.kind, event.time_s, event.text)
        self._told = monitor.count
