"""The outcome of a guarded run: its report, as a record and in words."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence


class GuardRequest(NamedTuple):
    """The request to ``run_guarded``.

    Without ``clock_mhz`` the clock is left alone until the power exceeds the cap: its mean over ``window_s``, or a
    single reading (None). ``cap_w`` is the limit at the board's own sensor; ``supply_cap_w`` is the cap requested at
    the supply, if it was requested there.

    ``caps`` is a cap that changes (``wattune.cli.guarded_cap.GuardedCap``), in place of both; its text is the cap's
    name. The program is held by SIGSTOP while the cap is 0 W, or less than it draws at the lowest clock, and stopped
    for good if that cap is the last. Without ``slices``, no two neighbouring clocks share the window where that is
    worth it (``slicing.gains_for``). ``stall_s``: time after which power that has fallen to nearly the power at rest is
    told.

    ``choice`` may take the board over while the program runs: it is called with each reading's time, power, the clock
    that is held, if one is, and the present cap, and changes settings itself from the first time on that it returns
    True. Its ``held`` is then the first knob's value, ``stopped`` says why the program has to end, ``lower`` brings the
    board to its lowest setting, ``restore`` to the guard's again, and ``take_events`` are the report's.
    """

    command: List[str]
    clock_mhz: Optional[float] = None
    cap_w: Optional[float] = None
    supply_cap_w: Optional[float] = None
    max_temp_c: Optional[float] = None
    window_s: Optional[float] = None
    caps: Any = None
    slices: bool = True
    stall_s: Optional[float] = None
    choice: Any = None


class Report(NamedTuple):
    """The results of a guarded run. Energy, mean and peak come from the sensor's readings.

    ``above_cap_s``: time during which the latest reading, or the mean over the cap's window, was above the cap.
    ``hottest_c``: the highest temperature, None without any. ``events``: ``{"time_s", "kind", "text"}`` in seconds
    since the program began; those of the guard also have ``power_w``, ``action``, ``setting``. One of kind "not
    restored" means that the board is not in its original state; ``restore_left_behind`` can then restore it.
    ``exit_code``: the program's (128 + n if signal n ended it), or 4. ``ended``: "finished", "interrupted" or "stopped
    for safety". ``cap_intervals``, ``paused_s``: under a cap that changes, its intervals, as in a training record, and
    the seconds in which the program was held. ``settings_s``: each setting that the guard held (each value of the first
    knob, where clocks were chosen), and for how many seconds.
    """

    time_s: float
    energy_j: float
    power_mean_w: float
    power_peak_w: float
    above_cap_s: float
    hottest_c: Optional[float]
    readings: int
    events: List[Dict[str, Any]]
    exit_code: int
    ended: str
    cap_intervals: Optional[List[Dict[str, Any]]] = None
    paused_s: Optional[float] = None
    settings_s: Sequence[Sequence[float]] = ()

    def not_restored(self, why: str) -> "Report":
        """The same for a board that could not be restored when it was released; itself if that is in it already."""
        if any(event["kind"] == "not restored" for event in self.events):
            return self
        event = {"time_s": self.time_s, "kind": "not restored", "text": why}
        return self._replace(events=[*self.events, event], exit_code=self.exit_code or 1)


def as_record(report: Report, request: GuardRequest, *, device: str, mode: str, kind: str) -> Dict[str, Any]:
    """The report as JSON values; ``kind`` is its provenance, "measured" or "simulated"."""
    is_at_supply = request.supply_cap_w is not None or str(request.caps).endswith("@supply")
    record = {
        "record": "guard",
        "version": 1,
        "device": device,
        "mode": mode,
        "command": list(request.command),
        "clock_mhz": request.clock_mhz,
        "cap_w": request.cap_w,
        "cap_side": "supply" if is_at_supply else "module",
        "supply_cap_w": request.supply_cap_w,
        "cap_window_s": request.window_s,
        "max_temp_c": request.max_temp_c,
    }
    record.update(report._asdict())
    if request.caps is None:
        del record["cap_intervals"], record["paused_s"]
    else:
        record["caps"] = str(request.caps)
    record["provenance"] = {"kind": kind}
    return record


def in_words(
    report: Report, request: GuardRequest, board: Dict[str, Any], kind: str, choice: Sequence[str] = ()
) -> List[str]:
    """The report in a few lines. ``board``: as a controller describes it; ``choice``: lines of a choice of clocks that
    took the board over."""
    unit = board.get("setting_unit", "MHz")
    clock = "the clock left to the board" if request.clock_mhz is None else "{:g} {}".format(request.clock_mhz, unit)
    clock = "the clocks held below the cap" if choice else clock
    origin = "" if kind == "measured" else "  [{}]".format(kind)
    lines = [
        "{} after {:.1f} s on {}, {}{}".format(report.ended, report.time_s, board["name"], clock, origin),
        *choice,
        "{:.1f} J, mean {:.2f} W, highest reading {:.2f} W of {} ({})".format(
            report.energy_j, report.power_mean_w, report.power_peak_w, report.readings, board["rail"]
        ),
    ]
    if request.cap_w is not None:
        by = "the readings"
        if request.window_s is not None:
            by = "the mean over {:g} s".format(request.window_s)
        elif board["window_s"]:
            by += ", each a mean over {:.2g} s".format(board["window_s"])
        at_supply = "" if request.supply_cap_w is None else " ({:g} W at the supply)".format(request.supply_cap_w)
        is_set = any(event["kind"] == "cap set" for event in report.events)
        what = "{:g} W{}{}".format(request.cap_w, at_supply, ", or the cap set in its place," if is_set else "")
        lines.append("above {} for {:.1f} s by {}".format(what, report.above_cap_s, by))
    if report.settings_s and (request.cap_w is not None or request.caps is not None):
        lines.append("held {}".format(_held(report.settings_s, unit)))
    if request.caps is not None and report.cap_intervals is not None:
        asked_w = [one["asked_w"] for one in report.cap_intervals if one["asked_w"] is not None]
        text = "above the caps of {} ({:g} to {:g} W) for {:.1f} s, held for {:.1f} s"
        ends_w = (min(asked_w, default=0.0), max(asked_w, default=0.0))
        lines.append(text.format(request.caps, *ends_w, report.above_cap_s, report.paused_s or 0.0))
    if request.max_temp_c is not None:
        hottest = "not known" if report.hottest_c is None else "{:.1f} C".format(report.hottest_c)
        lines.append("hottest {}, with a limit of {:g} C".format(hottest, request.max_temp_c))
    # Each was also printed when it happened, perhaps hours ago.
    for event in report.events:
        if event["kind"] in ("stuck sensor", "stalled", "slices off", "stood still", "not restored"):
            lines.append("{}: {}".format(event["kind"], event["text"]))
    return lines


def _held(settings_s: Sequence[Sequence[float]], unit: str) -> str:
    """The settings that were held, with the shares of the highest three: 816-918 MHz (37 % at 918)."""
    total_s = sum(seconds for _, seconds in settings_s) or 1.0
    lowest, highest = settings_s[0][0], settings_s[-1][0]
    if lowest == highest:
        return "{:g} {}".format(lowest, unit)
    shares = ("{:.0f} % at {:g}".format(100 * seconds / total_s, setting) for setting, seconds in settings_s[1:][-3:])
    return "{:g}-{:g} {} ({})".format(lowest, highest, unit, ", ".join(shares))
