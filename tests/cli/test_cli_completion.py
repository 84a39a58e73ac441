"""Shell completion: what the options install completes commands and options, in a real shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COMPLETED = """
source "$HOME/.bash_completions/wattune.sh"
COMP_WORDS=(wattune {words}) COMP_CWORD={index}
_wattune_completion wattune
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def bash(tmp_path):
    """Run a script in bash, which finds ``wattune`` on its path and has an empty home."""
    program = shutil.which("bash")
    if program is None:
        pytest.skip("bash is not installed")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(script):
        environment = {**os.environ, "HOME": str(tmp_path), "PATH": path}
        done = subprocess.run([program, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_installed_completion_completes(bash, tmp_path):
    bash("wattune --install-completion; exit $?")  # two commands: bash stays the parent, which names the shell
    assert (tmp_path / ".bashrc").exists()
    assert bash(COMPLETED.format(words="plan --max-s", index=2)).split() == ["--max-slowdown"]
