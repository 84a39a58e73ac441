"""The ``wattune-agent`` command: ``python3 -m wattune_agent`` if only this folder was copied to the board.

Exit codes: 0 success, 2 the request is invalid or cannot be met, 4 stopped for safety, 130 interrupted, 1 any other
error; ``guard`` exits with the exit code of its program.
"""

import argparse
import grp
import os
import sys
from typing import Any, Callable, Iterator, List, Optional, Tuple

from wattune_agent.client import AgentClient
from wattune_agent.controller import Controller
from wattune_agent.discovery import families, find_board, is_tegra
from wattune_agent.errors import AgentError, BadRequest, Busy, Forbidden, Full, Gone, NotKept, NotThere
from wattune_agent.guard_command import add_meter, add_options, guard
from wattune_agent.lease import LEASE_S
from wattune_agent.leftover import restore_left_behind
from wattune_agent.meter_sensor import read_by
from wattune_agent.nvidia import card_names
from wattune_agent.protocol import SOCKET
from wattune_agent.quantities import SECONDS, limit, quantity
from wattune_agent.server import serve
from wattune_agent.tree import Tree

GROUP = "wattune"


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    words, program = _split(words)
    parser = _parser()
    options = parser.parse_args(words)
    if program is not None and options.act is not _guard:
        parser.error("only `guard` runs a program")
    options.program = program
    try:
        code = int(options.act(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has exited, as `head` does; Python would complain about it again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (BadRequest, NotThere, Forbidden, Busy, Full, NotKept, Gone) as error:
        print("wattune-agent: {}".format(error), file=sys.stderr)
        return 2
    except AgentError as error:
        print("wattune-agent: {}".format(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _split(words: List[str]) -> Tuple[List[str], Optional[List[str]]]:
    """Split the options from the program after ``--``, whose options are not ours."""
    if "--" not in words:
        return words, None
    place = words.index("--")
    return words[:place], words[place + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wattune-agent", description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(metavar="COMMAND")
    # Python 3.6 knows no required=True here.
    parser.set_defaults(act=lambda _: parser.error("a command is needed: serve, guard, set, restore or devices"))

    def add(name: str, act: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(act=act)
        command.add_argument("--sysfs-root", metavar="DIR", default="/", help="a folder with sys/... in it")
        return command

    serving = add("serve", _serve, "Control the board for other processes, over a Unix socket, until SIGTERM.")
    serving.add_argument(
        "--device",
        metavar="NAME",
        help="jetson, cpu, or nvidia[:CARD], which is never the default; default: the first one found",
    )
    add_meter(serving)
    serving.add_argument("--socket", metavar="PATH", default=SOCKET)
    serving.add_argument(
        "--group",
        help="members of this group may connect; default: {}, if root runs this and the group exists, otherwise only "
        "this user".format(GROUP),
    )
    serving.add_argument("--lease", type=_seconds, default=LEASE_S, help="silence after which a client loses the board")

    add_options(add("guard", _guard, "Run a program: pin, meter, guard, restore. The program follows --."))
    setting = add("set", _set, "Hold another cap in place of the cap of a client of the agent, until that one ends.")
    setting.add_argument(
        "cap",
        type=limit,
        metavar="WATTS",
        help="such as 9W, at the board's sensor, which the client has to read (wattune does); none: its own again",
    )
    setting.add_argument("--socket", metavar="PATH", default=SOCKET)
    add("restore", _restore, "Restore a board that a killed process left changed.")
    add("devices", _devices, "List the boards: clocks, power, mode and problems.")
    return parser


def _serve(options: Any) -> int:
    tree = _tree(options)
    family = options.device or _found(tree)
    board = find_board(tree, family)
    read_by(board, options.meter)
    if board.clock is None and board.sensor is None:
        raise NotThere("{}: nothing to serve, no clock and no sensor: {}".format(board.name, "; ".join(board.problems)))
    controller = Controller(board)
    try:
        serve(
            controller,
            options.socket,
            options.group or _usual_group(),
            options.lease,
            lambda: restore_left_behind(tree, family=board.family),
        )
    finally:
        controller.close()
    return 0


def _usual_group() -> Optional[str]:
    try:
        return grp.getgrnam(GROUP).gr_name if os.geteuid() == 0 else None
    except KeyError:
        return None


def _guard(options: Any) -> int:
    return guard(options, _controller)


def _set(options: Any) -> int:
    cap_w, side = options.cap
    if side != "module":
        raise BadRequest("a cap at the supply cannot be set; give the watts at the board's sensor")
    client = AgentClient(options.socket)
    try:
        client.set_cap(cap_w)
    finally:
        client.close()
    return 0


def _restore(options: Any) -> int:
    messages = restore_left_behind(_tree(options, "sys"))
    _print("\n".join(messages) or "nothing was left behind")
    return 0


def _devices(options: Any) -> int:
    tree = _tree(options)
    # A Jetson's GPU is not a card, although its driver has the same library.
    cards = card_names(tree) if not is_tegra(tree) else []
    names = [*families(tree), *cards]
    for name in names:
        for line in _described(tree, name):
            _print(line)
    if not names:
        _print("no board found in {}".format(tree.root))
    return 0


def _print(text: str) -> None:
    """Print a line, whatever the encoding of stdout: labels and commands are other people's."""
    encoding = sys.stdout.encoding or "ascii"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _described(tree: Tree, family: str) -> Iterator[str]:
    board = find_board(tree, family)
    controller = Controller(board)
    description = controller.describe()
    problems = list(description["problems"])
    yield "{}  {}".format(family, description["name"])
    if description["settings_mhz"]:
        yield "  clocks   {} MHz".format(" ".join("{:g}".format(mhz) for mhz in description["settings_mhz"]))
    if board.sensor is not None:
        try:
            power_w = controller.read()["power_w"]
            yield "  power    {:.2f} W ({})".format(power_w, description["rail"])
        except AgentError as error:
            problems += [] if str(error) in problems else [str(error)]
    if description["mode"]:
        yield "  mode     {}".format(", ".join("{} {}".format(*item) for item in description["mode"].items()))
    for problem in problems:
        yield "  problem  {}".format(problem)


def _controller(options: Any) -> Any:
    device = options.device
    if device is not None and device.partition(":")[0] == "agent":
        if options.meter is not None:
            raise BadRequest("--meter: an agent reads the meter that it was started with: wattune-agent serve --meter")
        return AgentClient(device.partition(":")[2] or SOCKET)
    tree = _tree(options)
    board = find_board(tree, device or _found(tree))
    read_by(board, options.meter)
    return Controller(board)


def _tree(options: Any, folder: str = "") -> Tree:
    """The board's files. Raises: BadRequest if the folder, or the folder ``needed`` inside it, does not exist."""
    if not os.path.isdir(os.path.join(options.sysfs_root, folder)):
        raise BadRequest("--sysfs-root: {}; allowed: a folder with sys/... in it".format(options.sysfs_root))
    return Tree(options.sysfs_root)


def _found(tree: Tree) -> str:
    names = families(tree)
    if not names:
        raise NotThere("no board found in {}".format(tree.root))
    return names[0]


_seconds = quantity(SECONDS)


if __name__ == "__main__":
    sys.exit(main())
