"""The regulator chip of a Raspberry Pi 5, which tells the current and voltage of twelve rails through vcgencmd.

What leaves by the 5 V input (USB, HATs) and what the chip itself loses is in none of them, so the board is an estimate:
1.1451 times their sum, plus 0.5879 W.

Source: pitop.hongjunwu.com/guide/power, "Pi 5: PMIC power rails" and "Estimated total wattage".
"""

import re
import subprocess
from typing import Dict, List, Optional, Tuple

from wattune_agent.board import PowerSensor, Reading
from wattune_agent.errors import AgentError, FileFailed, Forbidden, NoReading
from wattune_agent.rails import HIGHEST_W
from wattune_agent.tree import ANSWERS, Tree, first_text

__all__ = ["PmicSensor", "ask", "can_be_asked", "find_pmic", "is_raspberry"]

SLOPE = 1.1451
OFFSET_W = 0.5879
"""The board from the sum of the rails."""

PATIENCE_S = 3.0

_PROGRAM = "vcgencmd"

# "  VDD_CORE_A current(7)=1.42880000A"; some firmware leaves the middle out.
_LINE = re.compile(r"^\s*(\w+)_([AV])\s*(?:\w+\(\d+\))?\s*=\s*([0-9.]+)[AV]\s*$", re.M)


class PmicSensor(PowerSensor):
    """The rails that tell both current and voltage; the board is an estimate from their sum."""

    rail = "PMIC estimate"
    covers = "the board, an estimate from the regulators' outputs (without USB and HATs)"
    resolution_w = 0.001

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read(self) -> Reading:
        """Raises: NoReading, Forbidden."""
        answer = ask(self._tree, "pmic_read_adc")
        values: Dict[str, Dict[str, float]] = {}
        for name, unit, digits in _LINE.findall(answer):
            try:
                values.setdefault(name, {})[unit] = float(digits)
            except ValueError:
                raise NoReading("vcgencmd pmic_read_adc: {} contains no number: {!r}".format(name, digits)) from None
        rails_w = {name: pair["A"] * pair["V"] for name, pair in values.items() if len(pair) == 2}
        if not rails_w:
            excerpt = " ".join(answer.split())[:80]
            raise NoReading("vcgencmd pmic_read_adc gave no rail with current and voltage: {!r}".format(excerpt))
        together_w = sum(rails_w.values())
        if not 0.0 < together_w <= HIGHEST_W:
            raise NoReading("the rails of vcgencmd pmic_read_adc sum to {:g} W, which is impossible".format(together_w))
        return Reading(SLOPE * together_w + OFFSET_W, rails_w)


def find_pmic(tree: Tree) -> Tuple[Optional[PowerSensor], List[str]]:
    """The regulator chip, and what is wrong; without it, what was looked for and what would help."""
    if not can_be_asked(tree):
        return None, [
            "no power sensor: looked for vcgencmd, which reads the regulators of a Raspberry Pi 5; install it "
            "(raspi-utils), give it to the container with /dev/vcio, or use --meter external:... with a meter"
        ]
    sensor = PmicSensor(tree)
    try:
        sensor.read()
    except Forbidden as error:
        return sensor, [str(error)]
    except AgentError as error:
        return None, [
            "no power sensor: {}; only a Raspberry Pi 5 reports the currents of its regulators: use --meter "
            "external:... with a meter on others".format(error)
        ]
    return sensor, []


def is_raspberry(tree: Tree) -> bool:
    """True if the tree is that of a Raspberry Pi."""
    model = first_text(tree, ["/proc/device-tree/model", "/sys/firmware/devicetree/base/model"])
    return "raspberry pi" in model.lower()


def can_be_asked(tree: Tree) -> bool:
    """True if vcgencmd exists here, or a board's record contains an answer of it."""
    return tree.program(_PROGRAM) is not None or (tree.root != "/" and tree.exists(ANSWERS + "/" + _PROGRAM))


def ask(tree: Tree, question: str) -> str:
    """The answer of vcgencmd, now or when the board was recorded. Raises: NoReading, Forbidden."""
    try:
        answer = tree.answer(_PROGRAM + " " + question)
    except FileFailed as error:
        raise NoReading(str(error)) from error
    if answer is None:
        answer = _asked(tree.program(_PROGRAM), question)
    if re.search(r"permission denied|can't open device|VCHI initialization failed", answer, re.I):
        raise Forbidden(
            "/dev/vcio may not be read by this user ({}); join the group video, or run the agent as root "
            "(wattune-agent serve) and use --device agent".format(" ".join(answer.split())[:80])
        )
    return answer


def _asked(program: Optional[str], question: str) -> str:
    if program is None:
        raise NoReading("there is no {} here to read {}".format(_PROGRAM, question))
    try:
        process = subprocess.run(
            [program, question],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise NoReading("{} {} did not answer within {:g} s".format(program, question, PATIENCE_S)) from error
    except OSError as error:
        raise NoReading("{} cannot be run: {}".format(program, error.strerror or error)) from error
    return process.stdout
