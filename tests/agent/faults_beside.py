"""Faults of the clocks beside the GPU's: the lock on the memory's with the cap above it, and the CPU's policies."""

from tests.agent.faults_made import UNTOUCHED, cell, fault

LAPTOP = {"cpu_laptop": "it sets no clock beside its CPU's"}
NO_CAP = {"nano": "no cap was recorded on it", **LAPTOP}


@fault("no permission to write the memory's lock or a CPU's limit", **LAPTOP)
def _(bench):
    for path, name in ((memory(bench).lock_path, "memory_clock_mhz"), (cpu(bench).high_path, "cpu_clock_mhz")):
        bench.tree.faults.clear()
        bench.tree.fault(path, "forbidden", on="write")
        found = bench.found()
        assert name not in found.others
        assert len(found.others) == 1
        assert found.clock.settings_mhz == bench.settings
    bench.tell("not offered")
    return cell(bench.told, UNTOUCHED)


@fault("the memory's lock or rate, or a CPU's limit, refuses what is written (EINVAL)", **LAPTOP)
def _(bench):
    for path in (memory(bench).lock_path, memory(bench).setter_path, cpu(bench).high_path):
        bench.tree.faults.clear()
        bench.tree.fault(path, "refused")
        assert not pin(bench)


@fault("the memory's lock or rate ignores what is written", **LAPTOP)
def _(bench):
    for path in (memory(bench).lock_path, memory(bench).setter_path):
        bench.tree.faults.clear()
        bench.tree.fault(path, "ignored")
        pin(bench)


@fault("the memory's lock ignores its release", **LAPTOP)
def _(bench):
    assert pin(bench)
    bench.tree.fault(memory(bench).lock_path, "ignored")


@fault("a change of the memory clock fails, beside a pinned GPU", **LAPTOP)
def _(bench):
    assert pin(bench)
    before = bench.tree.state()
    bench.tree.fault(memory(bench).setter_path, "refused")
    assert not pin(bench, other=True)
    assert bench.tree.state() == before
    bench.mend()


@fault("the memory clock cannot be pinned beside a pinned GPU", **LAPTOP)
def _(bench):
    assert bench.pin()
    bench.tree.fault(memory(bench).setter_path, "refused")
    assert not pin(bench)
    assert bench.is_at(bench.mhz)
    assert bench.tree.read(memory(bench).lock_path) == "0"


@fault("the memory's lock vanishes while pinned (debugfs unmounted)", **LAPTOP)
def _(bench):
    assert pin(bench)
    bench.tree.fault(memory(bench).lock_path, "vanished")
    bench.looks()


@fault("the firmware caps the memory clock below the pin", **NO_CAP)
def _(bench):
    lowest = memory(bench).rates[0]
    bench.tree.before_write = lambda path, text: setattr(memory(bench), "most", lowest)  # behind the snapshot
    assert pin(bench)
    bench.tree.before_write = None
    memory(bench).most = None


@fault("another program releases the memory's lock while pinned", **LAPTOP)
def _(bench):
    assert pin(bench)
    bench.tree.rewrite(memory(bench).lock_path, "0")
    bench.looks()
    assert bench.tree.read(memory(bench).lock_path) == "1"


@fault("another program writes the power mode's cap on the memory while pinned", **NO_CAP)
def _(bench):
    assert pin(bench)
    bench.tree.rewrite(memory(bench).cap_path, str(memory(bench).rates[-1]))
    bench.looks()
    assert memory(bench).cap == round(1e6 * bench.others["memory_clock_mhz"])


def memory(bench):
    return bench.tree.board.memory


def cpu(bench):
    return bench.tree.board.cpus[0]


def pin(bench, *, other=False):
    """Pin all clocks, the memory's in the middle, or at its lowest."""
    others = dict(bench.others)
    if other:
        others["memory_clock_mhz"] = bench.board.others["memory_clock_mhz"].settings_mhz[0]
    done = bench.tells(bench.controller.pin, bench.mhz, others)
    bench.hears(bench.controller.check())
    return done is not None
