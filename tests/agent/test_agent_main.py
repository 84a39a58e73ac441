"""The command of the agent, as a process, on a live board made of files."""

import argparse
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.agent_socket import ENVIRONMENT, Holder, agent, served, serving
from tests.support.live.tree import LiveTree
from tests.support.live_board import ROOT, wait_for
from tests.support.made_board import MadeBoard

from wattune_agent import server
from wattune_agent.__main__ import main
from wattune_agent.client import AgentClient
from wattune_agent.lease import BoardLease
from wattune_agent.quantities import limit


def run(*arguments):
    with agent(*arguments) as process:
        out, said = process.communicate(timeout=30)
    return process.returncode, out, said


def on(board):
    return ["--device", "jetson", "--sysfs-root", board.root]


def test_devices_are_listed(board, capsys):
    assert main(["devices", "--sysfs-root", str(board.root)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("jetson  ")
    assert "clocks   306 408" in said
    assert re.search(r"power    [1-9]\d*\.\d\d W \(VDD_IN\)", said)


def test_a_label_and_a_command_that_are_not_ascii_are_printed_on_any_terminal(tmp_path):
    """Python 3.6 encodes for a terminal without a locale in ASCII, and strictly."""
    tree = LiveTree(tmp_path / "board")
    (label,) = [path for path in Path(tree.root).rglob("in1_label") if path.read_text() == "VDD_IN\n"]
    label.write_text("VDD_IN \u00dc\n", encoding="utf-8")
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii:strict"}
    command = [sys.executable, "-m", "wattune_agent", "devices", "--sysfs-root", str(tree.root)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "VDD_IN \\xdc" in done.stdout


@pytest.mark.slow
def test_an_agent_finds_a_clock_that_appears_after_its_start(tmp_path):
    tree = LiveTree(tmp_path / "board")
    folder = Path(tree.root, "sys/class/devfreq")
    folder.rename(tmp_path / "later")
    real = Path(tree.inside("/sys/devices"))
    driver = next(real.rglob("17000000.gpu/devfreq"))
    driver.rename(tmp_path / "driver")
    socket = tmp_path / "agent.sock"
    command = [sys.executable, "-m", "wattune_agent", "serve", "--device", "jetson", "--sysfs-root", tree.root]
    with subprocess.Popen([*command, "--socket", str(socket)], env=ENVIRONMENT, stderr=subprocess.PIPE) as process:
        try:
            assert wait_for(socket.exists)
            with AgentClient(str(socket)) as client:
                assert client.describe()["settings_mhz"] == []
            (tmp_path / "driver").rename(driver)
            (tmp_path / "later").rename(folder)

            def pins():
                with AgentClient(str(socket)) as client:
                    return bool(client.describe()["settings_mhz"]) and client.pin(408.0) == {"mhz": 408.0}

            assert wait_for(pins)
        finally:
            process.terminate()


def test_an_empty_tree_has_no_board(tmp_path, capsys):
    assert main(["devices", "--sysfs-root", str(tmp_path)]) == 0
    assert "no board found" in capsys.readouterr().out
    assert main(["guard", "--sysfs-root", str(tmp_path), "--", "true"]) == 2
    assert "no board found" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nothing"],
        ["serve", "--", "true"],
        ["serve", "--lease", "-1"],
        ["guard", "--cap", "ten", "--", "true"],
        ["guard", "--cap", "10V", "--", "true"],
        ["guard", "--clock", "nan", "--", "true"],
    ],
)
def test_what_cannot_be_asked_is_refused_with_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "wattune-agent" in capsys.readouterr().err


def test_guard_runs_a_program_that_is_not_python_and_reports(board):
    options = [*on(board), "--clock", "612MHz", "--cap", "50W", "--max-temp", "99C"]
    script = "cat {}/sys/class/devfreq/17000000.gpu/max_freq; exit 7".format(board.root)
    code, out, said = run("guard", *options, "--", "sh", "-c", script)
    assert (code, out.strip()) == (7, "612000000")
    assert "finished" in said
    assert "VDD_IN" in said
    assert "[simulated]" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_serve_ends_with_the_board_as_it_was(board, tmp_path, number):
    socket = tmp_path / "agent.sock"
    with serving(board.root, socket) as process:
        holder = Holder(socket, ["pin", 408.0], ["guard", 50.0])
        process.send_signal(number)
        assert process.wait(10) == 0
        holder.end()
    assert not board.is_at(408.0)
    assert not socket.exists()


def python_3_6():
    """A Python 3.6 of this machine, also one that pyenv keeps; None if there is none."""
    found = [shutil.which("python3.6")]
    if shutil.which("pyenv") is not None:
        root = subprocess.run(["pyenv", "root"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        found += sorted(glob.glob(os.path.join(glob.escape(root), "versions", "3.6.*", "bin", "python")))
    for python in filter(None, found):
        # A shim of pyenv is there also if its version is not the one that is chosen.
        done = subprocess.run([python, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.stdout.startswith("Python 3.6."):
            return python
    return None


@pytest.mark.slow
def test_a_copied_folder_serves_and_guards_with_the_python_of_jetpack_4(board, tmp_path):
    python = python_3_6()
    if python is None:
        pytest.skip("neither python3.6 nor a 3.6 of pyenv is on this machine")
    (tmp_path / "wattune_agent").symlink_to(ROOT / "src" / "wattune_agent")
    environment = {**ENVIRONMENT, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    socket = tmp_path / "agent.sock"
    command = [python, "-m", "wattune_agent", "serve", *map(str, on(board)), "--socket", str(socket)]
    with subprocess.Popen(command, cwd=str(tmp_path), env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert wait_for(socket.exists)
            script = "cat {}/sys/class/devfreq/17000000.gpu/max_freq".format(board.root)
            guard = ["guard", "--device", "agent:{}".format(socket), "--clock", "408", "--cap", "50"]
            done = subprocess.run(
                [python, "-m", "wattune_agent", *guard, "--", "sh", "-c", script],
                cwd=str(tmp_path),
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                timeout=30,
            )
            assert (done.returncode, done.stdout.strip()) == (0, "408000000"), done.stderr
        finally:
            process.terminate()
            _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said


# ----------------------------------------------------------------------------------------------------- the deploy files


def unit():
    lines = (ROOT / "deploy" / "wattune-agent.service").read_text(encoding="utf-8").splitlines()
    return [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]


def test_the_units_commands_are_ones_that_the_agent_takes(monkeypatch):
    commands = [value.split(" -m wattune_agent ")[1].split() for _, value in unit() if " -m wattune_agent " in value]
    asked = []
    for name in ("_serve", "_restore"):
        monkeypatch.setattr("wattune_agent.__main__." + name, lambda options: asked.append(vars(options)) or 0)
    assert [main(command) for command in commands] == [0, 0]
    assert asked[0]["socket"] == "/run/wattune/agent.sock"
    assert asked[0]["group"] == "wattune"
    assert ["RuntimeDirectory", "wattune"] in unit()


def test_the_unit_leaves_the_agent_what_it_needs_and_little_else():
    settings = dict(unit())
    assert int(settings["LimitNOFILE"]) >= 4 * server.MOST
    # Its files below /sys, its socket, and the group of that socket.
    forbidden = {"ProtectKernelTunables", "ProtectProc", "PrivateNetwork", "PrivateDevices", "PrivateUsers"}
    assert not forbidden & set(settings)
    assert "CAP_CHOWN" in settings["CapabilityBoundingSet"]
    assert "CAP_SYS_ADMIN" not in settings["CapabilityBoundingSet"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
def test_the_unit_is_hardened():
    path = ROOT / "deploy" / "wattune-agent.service"
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if "unrecognized option" in done.stdout:
        pytest.skip("systemd of this machine cannot analyze a file")
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_units_python_path_finds_the_folder(tmp_path):
    (path,) = [value.split("=", 1)[1].split()[0] for key, value in unit() if key == "Environment"]
    shutil.copytree(str(ROOT / "src" / "wattune_agent"), str(tmp_path / "wattune_agent"))
    environment = {**ENVIRONMENT, "PYTHONPATH": path.replace("/opt/wattune", str(tmp_path))}
    command = [sys.executable, "-S", "-m", "wattune_agent", "devices", "--sysfs-root", str(tmp_path)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, cwd=str(tmp_path), text=True)
    assert (done.returncode, done.stdout[:14]) == (0, "no board found")


# ------------------------------------------------------------------------------------------- what is refused, and how


@pytest.mark.parametrize("command", [["restore"], ["devices"], ["guard", "--", "true"], ["serve"]])
def test_a_folder_that_is_not_there_is_refused_in_one_line(tmp_path, command, capsys):
    name, *rest = command
    assert main([name, "--sysfs-root", str(tmp_path / "none"), *rest]) == 2
    out, said = capsys.readouterr()
    assert (out, said.count("\n")) == ("", 1)
    assert "sys/..." in said


@pytest.mark.parametrize("command", ["devices", "restore"])
def test_a_reader_that_goes_away_costs_no_traceback(board, command):
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "wattune_agent", command, "--sysfs-root", str(board.root)]
    done = subprocess.run(arguments, env=ENVIRONMENT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_agent_that_has_nothing_to_serve_says_so(tmp_path, capsys):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("model name : a computer\n")
    assert main(["serve", "--sysfs-root", str(tmp_path), "--socket", str(tmp_path / "socket")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "a computer: nothing to serve, no clock and no sensor: " in said
    assert not (tmp_path / "socket").exists()


TOUCH = ["--", "touch", "{}/ran"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "no program"),
        (["--"], "no program"),
        (["--", "no-such-program-anywhere"], "program not found: no-such"),
        (["--clock", "333MHz", *TOUCH], "306, 408"),
        (["--cap", "12W@supply", *TOUCH], "a meter at the supply"),
    ],
)
def test_guard_refuses_in_one_line_before_the_program_runs(board, tmp_path, words, text, capsys):
    assert main(["guard", *map(str, on(board)), *(word.format(tmp_path) for word in words)]) == 2
    out, said = capsys.readouterr()
    assert (out, said.count("\n")) == ("", 1)
    assert text in said
    assert not (tmp_path / "ran").exists()


def test_guard_with_a_report_on_stdout(board, tmp_path):
    options = [*on(board), "--cap", "50W", "--clock", "0.612GHz", "--json"]
    command = ["sh", "-c", "echo mine; exit 3"]
    code, out, said = run("guard", *options, "--", *command)
    report = json.loads(out)
    assert report["energy_j"] > 0
    assert (report["command"], report["provenance"]) == (command, {"kind": "simulated"})
    assert (code, report["exit_code"]) == (3, 3)
    assert (report["cap_w"], report["supply_cap_w"], report["cap_side"]) == (50.0, None, "module")
    assert (report["record"], report["clock_mhz"]) == ("guard", 612.0)
    assert said == "mine\n"


def test_another_shell_sets_the_cap_of_a_client(tmp_path, capsys):
    path = tmp_path / "agent.sock"
    with served(path, BoardLease(MadeBoard(), lease_s=60.0)), AgentClient(str(path)) as holder:
        assert main(["set", "2.5W", "--socket", str(path)]) == 2
        assert "no client has a cap" in capsys.readouterr().err
        holder.pin(300.0)
        holder.guard(9.0)
        assert main(["set", "2.5W", "--socket", str(path)]) == 0
        assert holder.read()["set_cap_w"] == 2.5
        assert "2.5 W now" in next(event["text"] for event in holder.check() if event["kind"] == "cap set")
        assert main(["set", "none", "--socket", str(path)]) == 0
        assert holder.read().get("set_cap_w") is None
    assert main(["set", "9W@supply", "--socket", str(path)]) == 2
    assert main(["set", "9W", "--socket", str(tmp_path / "none.sock")]) == 2


@pytest.mark.parametrize(
    ("text", "watts", "side"),
    [
        ("10W", 10.0, "module"),
        ("10", 10.0, "module"),
        ("4500mW", 4.5, "module"),
        ("0.18kW@supply", 180.0, "supply"),
        ("5A@5V", 25.0, "module"),
        ("5 A @ 5 V", 25.0, "module"),
        ("1.5A@12V@supply", 18.0, "supply"),
        ("12W@Module", 12.0, "module"),
        ("12W@sensor", 12.0, "module"),
        ("none", None, "module"),
    ],
)
def test_a_limit_and_its_side(text, watts, side):
    assert limit(text) == (pytest.approx(watts) if watts is not None else None, side)


@pytest.mark.parametrize("text", ["5MW", "5A", "5A@5", "5V@5A", "10W@wall", "-3W", "0W", "1e400W", "", "watch:f"])
def test_what_is_no_limit_is_refused_by_its_name(text):
    with pytest.raises(argparse.ArgumentTypeError) as raised:
        limit(text)
    assert len(str(raised.value).splitlines()) <= 1
