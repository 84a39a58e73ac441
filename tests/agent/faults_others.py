"""Others who write the same files: once, for ever, in between; another controller; another power mode."""

from contextlib import suppress

from tests.agent.faults_made import fault
from tests.support.live.tree import CALL_S

from wattune_agent.controller import Controller
from wattune_agent.guarded import run_guarded


def top(bench):
    """What another program writes into the upper limit: the highest."""
    return str(bench.tree.board.clocks[0].listed[-1])


@fault("another program writes a limit, or the switch of railgating or boost, while pinned")
def _(bench):
    assert bench.pin()
    for path, text in ((bench.high, top(bench)), (bench.switch, bench.on)):
        bench.tree.rewrite(path, text)
        bench.looks()
        assert bench.is_at(bench.mhz)
        assert bench.tree.board.text(bench.switch) == bench.off


@fault("another program writes a limit while pinned, again and again")
def _(bench):
    assert bench.pin()
    for _ in range(10):
        bench.tree.rewrite(bench.high, top(bench))
        bench.looks(1)
    assert not bench.is_at(bench.mhz)


@fault("another program writes a limit after each write of our restore, again and again")
def _(bench):
    assert bench.pin()

    def rewrite():
        with suppress(OSError):  # an older kernel refuses what does not fit to the other limit
            bench.tree.rewrite(bench.high, str(bench.tree.board.clocks[0].listed[-2]))

    bench.tree.before_write = lambda path, text: bench.tree.later(bench.tree.now_s() + 1.5 * CALL_S, rewrite)


@fault("another program writes between the writes of our pin and restore")
def _(bench):
    for act, index in ((bench.pin, -1), (lambda: bench.tells(bench.controller.restore), -2)):
        others = iter([str(bench.tree.board.clocks[0].listed[index])])

        def write(path, text, others=others):
            if path == bench.low and (other := next(others, None)) is not None:
                bench.tree.rewrite(bench.high, other)

        bench.tree.before_write = write
        act()
        assert bench.is_at(bench.mhz) if index == -1 else bench.is_back


@fault("a second controller")
def _(bench):
    assert bench.pin()
    writes = len(bench.tree.writes)
    with Controller(bench.found()) as second:
        bench.tells(second.pin, bench.other_mhz)
        bench.tells(lambda: run_guarded(second, ["false"], cap_w=900.0))
    assert bench.is_at(bench.mhz)
    assert len(bench.tree.writes) == writes


@fault("another program switches the power mode while pinned, and with it the limits", cpu_laptop="it has no nvpmodel")
def _(bench):
    status = "/var/lib/nvpmodel/status"
    before = bench.tree.read(status)
    assert bench.pin(bench.other_mhz)
    bench.tree.rewrite(status, "pmode:0001")
    bench.tree.rewrite(bench.high, str(round(bench.settings[3] * bench.tree.board.model.per_mhz)))
    bench.looks()
    assert bench.is_at(bench.other_mhz)
    bench.tells(bench.controller.restore)
    bench.tree.rewrite(status, before)
