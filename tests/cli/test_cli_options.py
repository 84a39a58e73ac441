"""What may stand behind the options of real boards."""

from __future__ import annotations

import pytest


def test_a_root_without_files(wattune, tmp_path):
    for command in (
        ["doctor"],
        ["doctor", "--device", "jetson"],
        ["guard", "--device", "jetson"],
        ["profile", "--device", "cpu"],
    ):
        tail = ["--", "true"] if command[0] == "guard" else []
        code, out, err = wattune(*command, "--sysfs-root", tmp_path, *tail)
        assert (code, out, len(err)) == (2, "", 1)
        assert "a folder with sys/" in err[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "plan.json", "--device", "sim:jetson-nano", "--max-temp", "999"],
        ["guard", "--device", "sim:jetson-nano", "--", "true"],
        ["guard", "--device", "jetson"],
        ["doctor", "--device", "sim:jetson-nano"],
        ["doctor", "--device", "nonsense"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant(wattune, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = wattune(*arguments)
    assert (code, out, len(err)) == (2, "", 1), err
    assert not list(tmp_path.iterdir())
