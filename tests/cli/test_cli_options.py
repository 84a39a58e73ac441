"""What may stand behind the options of real boards."""

from __future__ import annotations


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
