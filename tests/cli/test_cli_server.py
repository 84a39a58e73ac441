"""`wattune run --server`: what goes together, and where the token comes from."""

import json

import pytest
from tests.support.fake_server import Answer, faked, problem

from wattune.cli import main
from wattune.job.folder import RunArguments

NOBODY = "http://127.0.0.1:9"
RUN = ["run", "--device", "sim:jetson-nano", "--cap", "4.2W"]


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("WATTUNE_TOKEN", raising=False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--server", "host:8484", "--model", "m", "--data", "x.npz"], "http://host:8484"),
        (["--server", NOBODY, "--model", "../m", "--data", "x.npz"], "model: ../m"),
        (
            ["--server", NOBODY, "--model", "m", "--data", "x.npz", "--set", "token_file=none"],
            "token_file cannot be read",
        ),
    ],
)
def test_invalid_options_are_refused_in_one_line(options, said, capsys, tmp_path):
    assert main([*RUN, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == []


def test_a_server_that_is_away_is_one_line_and_exit_code_1(capsys):
    assert main([*RUN, "--server", NOBODY, "--model", "m", "--data", "x.npz"]) == 1
    assert "cannot be reached" in capsys.readouterr().err.splitlines()[-1]


def test_the_token_is_read_from_the_file_and_shown_nowhere(tmp_path, capsys):
    (tmp_path / "token").write_text("wt_abc_secret\n")
    with faked(lambda asked: problem(403, "the token's scope: read; allowed: device")) as fake:
        options = ["--server", fake.url, "--model", "m", "--data", "x.npz", "--set", "token_file=token", "--json"]
        assert main([*RUN, *options]) == 2
    assert fake.asked[0].headers["authorization"] == "Bearer wt_abc_secret"
    shown = capsys.readouterr()
    assert "secret" not in shown.err + shown.out
    assert json.loads(shown.out)["error"]["type"] == "ServerRefused"


def test_a_token_cannot_be_given_on_the_command_line(capsys):
    with faked(lambda asked: Answer()) as fake:
        assert main([*RUN, "--server", fake.url, "--token", "wt_a_b"]) == 2
    assert "No such option: --token" in capsys.readouterr().err


def test_resuming_needs_the_folder_alone(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    known = {"server": NOBODY, "model": "m", "data": "x.npz", "name": "nano", "cap": 4.2, "device": "sim:jetson-nano"}
    RunArguments(arguments=known).save(tmp_path / "run" / "run.json")
    assert main(["run", "-o", "run", "--resume"]) == 1
    assert f"the server {NOBODY} cannot be reached" in capsys.readouterr().err.splitlines()[-1]


def test_an_interrupted_run_says_to_give_the_token_file_again(monkeypatch, tmp_path, capsys):
    def interrupted(config, **_):
        config.output.mkdir()
        (config.output / "run.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr("wattune.job.run.run_as", interrupted)
    (tmp_path / "token").write_text("wt_a_b\n")
    options = ["--server", NOBODY, "--model", "m", "--data", "x.npz", "--set", "token_file=token", "-o", "run"]
    assert main([*RUN, *options]) == 130
    said = capsys.readouterr().err
    here = tmp_path.resolve()
    assert f"continue with: wattune run --output {here}/run --set token_file={here}/token --resume" in said
    assert "wt_a_b" not in said
