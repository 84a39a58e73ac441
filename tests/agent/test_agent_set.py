"""Another cap from another shell, through an agent."""

from tests.support.agent_socket import served
from tests.support.made_board import MadeBoard

from wattune_agent.__main__ import main
from wattune_agent.client import AgentClient
from wattune_agent.lease import BoardLease


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
