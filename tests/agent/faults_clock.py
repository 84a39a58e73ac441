"""Faults of the clock: it comes late or never, something holds it down, a switch refuses."""

from tests.agent.faults_made import AS_FOUND, cell, fault


@fault("the clock settles late (0.8 s)")
def _(bench):
    _settles(bench, 0.8)
    begin_s = bench.tree.now_s()
    assert bench.pin()
    assert 0.5 < bench.tree.now_s() - begin_s < 2.0
    if bench.load:  # without work it need not rise to its limits
        assert bench.tree.board.clock_mhz == bench.mhz


@fault("the clock never settles")
def _(bench):
    _settles(bench, 1e9)
    bench.pin()
    _settles(bench, 0.05)


@fault("the current clock cannot be read, briefly")
def _(bench):
    bench.tree.fault(bench.now, "eio", on="read", until_s=bench.tree.now_s() + 0.5)
    assert bench.pin()


@fault("the current clock cannot be read")
def _(bench):
    bench.tree.fault(bench.now, "garbage")
    bench.pin()


@fault("a clamp (heat, power budget) that began before the pin holds the clock below it")
def _(bench):
    bench.controller.read()
    bench.tree.before_write = lambda path, text: bench.clamp(bench.settings[2])  # behind the snapshot
    bench.pin(bench.settings[-2])
    _throttled(bench)
    bench.tree.before_write = None
    bench.clamp(None)


@fault("throttled by heat while pinned, for a while")
def _(bench):
    bench.controller.read()
    assert bench.pin(bench.settings[-2])
    bench.clamp(bench.settings[2])
    bench.looks()
    _throttled(bench)
    bench.clamp(None)
    bench.looks()
    assert bench.is_at(bench.settings[-2])


@fault("throttled by heat during the restore")
def _(bench):
    bench.controller.read()
    assert bench.pin(bench.settings[-2])
    bench.clamp(bench.settings[2])
    bench.tells(bench.controller.restore)
    bench.hears(bench.controller.check())
    bench.clamp(None)


@fault("already throttled by heat when the board is opened")
def _(bench):
    bench.controller.read()
    bench.clamp(bench.settings[-2])
    bench.tree.sleep(1.0)
    found = bench.tree.state()
    assert bench.pin(bench.settings[1])
    bench.tells(bench.controller.restore)
    assert bench.tree.state() == found
    bench.clamp(None)
    ending = AS_FOUND
    for path, text in bench.before[0].items():
        if bench.tree.board.text(path) != text:
            ending = "as found: at the clamp's limit, see below"
            bench.tree.rewrite(path, text)
    bench.end()
    return cell(bench.told, ending)


@fault("the clock goes above its limits while pinned")
def _(bench):
    assert bench.pin()
    bench.tree.board.clocks[0].now = bench.tree.board.clocks[0].listed[-1]
    bench.looks()


def _settles(bench, seconds):
    for clock in bench.tree.board.clocks:
        clock.settle_s = seconds


def _throttled(bench):
    bench.tree.sleep(1.0)
    if bench.controller.read()["throttled"]:
        bench.tell("throttled")
