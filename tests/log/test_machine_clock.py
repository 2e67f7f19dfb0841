"""Processes of one machine whose clocks disagree: the one that is off goes by the time of the others."""

import subprocess

import msgspec
import pytest

from hocket.log.machine_clock import VALID_S, VOUCH_S, VOUCHED, MachineClock, Vouch
from hocket.store import MEMORY, Store
from hocket.store import open as open_store

BOUND_MS = 300_000
HOUR_S = 3600.0


class Machine:
    """An uptime and a clock that all processes read; each may have a fault of its own."""

    def __init__(self) -> None:
        self.store: Store = open_store(MEMORY)
        self.uptime_s = 1_000.0
        self.set_by_s = 0.0
        self.boot = "boot"
        self.faults: dict[str, float] = {}

    def process(self, name: str, off_s: float = 0.0) -> MachineClock:
        self.faults[name] = off_s
        return MachineClock(
            self.store,
            name,
            BOUND_MS,
            clock=lambda: self.now() + self.faults[name],
            monotonic=lambda: self.uptime_s,
            uptime=lambda: self.uptime_s,
            boot=lambda: self.boot,
        )

    def now(self) -> float:
        return 1_700_000_000.0 + self.uptime_s + self.set_by_s


@pytest.mark.req("LW-22")
@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S])
def test_a_process_with_a_wrong_clock_goes_by_the_time_of_the_others(off_s: float) -> None:
    machine = Machine()
    assert machine.process("worker").compare(vouch=True) == 0
    odd = machine.process("odd", off_s)
    assert odd.compare(vouch=True) == off_s * 1000
    assert odd() == pytest.approx(machine.now())
    # It never vouches, also when the others have ended.
    machine.uptime_s += 10 * VALID_S
    assert odd.compare(vouch=True) == off_s * 1000 and odd() == pytest.approx(machine.now())
    assert machine.process("next").compare() == 0


def test_a_clock_that_jumps_in_one_process_is_not_taken() -> None:
    machine = Machine()
    machine.process("worker").compare(vouch=True)
    odd = machine.process("odd")
    assert odd() == machine.now()
    machine.faults["odd"] = HOUR_S
    assert odd() == pytest.approx(machine.now()), "at the very first reading"
    machine.faults["odd"] = 0.0
    assert odd() == pytest.approx(machine.now()) and odd.off_ms == 0


def test_a_machine_whose_clock_is_set_is_believed() -> None:
    machine = Machine()
    worker, other = machine.process("worker"), machine.process("other")
    worker.compare(vouch=True)
    assert other.compare(vouch=True) == 0
    machine.set_by_s = 10 * HOUR_S
    assert worker.compare(vouch=True) == 0 and worker() == machine.now()
    assert other.compare(vouch=True) == 0 and other() == machine.now()


def test_small_differences_old_vouches_and_other_boots_do_not_count() -> None:
    machine = Machine()
    machine.process("worker").compare(vouch=True)
    slow = machine.process("slow", -BOUND_MS / 2000)
    assert slow.compare() == 0 and slow() == pytest.approx(machine.now() - BOUND_MS / 2000)
    machine.boot = "another"
    assert machine.process("later", HOUR_S).compare() == 0
    machine.boot = "boot"
    machine.uptime_s += VALID_S + 1
    assert machine.process("after", HOUR_S).compare() == 0


def test_a_process_that_stays_vouches_again_in_time() -> None:
    machine = Machine()
    worker = machine.process("worker")
    for _ in range(20):
        worker.compare(vouch=True)
        machine.uptime_s += VOUCH_S / 3
    assert machine.process("odd", HOUR_S).compare() == HOUR_S * 1000


@pytest.mark.req("LW-22")
def test_the_word_of_a_process_that_has_ended_does_not_count() -> None:
    """The machine's clock was fast when that process vouched for it, and was set right since."""
    machine = Machine()
    machine.process("fast", HOUR_S).compare(vouch=True)
    assert machine.process("command").compare() == -HOUR_S * 1000, "that process runs"
    ended = subprocess.Popen(["true"])
    ended.wait()
    with machine.store.write() as session:
        said = msgspec.json.decode(session.meta(VOUCHED) or b"", type=Vouch)
        session.set_meta(VOUCHED, msgspec.json.encode(msgspec.structs.replace(said, pid=ended.pid)))
    assert machine.process("command").compare() == 0
    with machine.store.write() as session:
        elsewhere = msgspec.structs.replace(said, pid=ended.pid, namespace="another")
        session.set_meta(VOUCHED, msgspec.json.encode(elsewhere))
    assert machine.process("command").compare() == -HOUR_S * 1000, "its number means nothing here"
