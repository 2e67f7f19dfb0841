"""Signing many ops in a process of their own: the same signatures, whatever becomes of the process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.signing import OpSigner
from hocket.log import batch_signing, sealing
from hocket.log.batch_signing import BUSY_OPS, FAILED_REST_S, IDLE_S, BatchSigner, SigningProcess
from tests.log.processes import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parent.parent.parent
KEY = SigningKey(b"\x07" * 32)
SIGNER = OpSigner(KEY, node_id(KEY.public))
MARKED = [SIGNER.marked(b"op %d" % number) for number in range(BUSY_OPS + 1)]
SIGNED = [SIGNER.signed(op) for op in MARKED]


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def batches(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchSigner]:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    batches = BatchSigner(SIGNER, clock)
    yield batches
    batches.close()


def busy(batches: BatchSigner) -> SigningProcess:
    """Signs so many that a process is started, and waits for it."""
    assert batches.signed(MARKED, True) == SIGNED
    process = batches.process
    assert process is not None
    eventually(lambda: process.is_ready)
    return process


def test_few_ops_are_signed_here(batches: BatchSigner, clock: FakeClock) -> None:
    for _ in range(5):
        clock.now += 1.5
        assert batches.signed(MARKED[: BUSY_OPS // 2], True) == SIGNED[: BUSY_OPS // 2]
    assert batches.process is None and batches.patience is None


@pytest.mark.touches("LW-07")
def test_many_ops_are_signed_in_a_process_of_their_own(batches: BatchSigner) -> None:
    busy(batches)
    mixed = [MARKED[0], SIGNED[1], MARKED[2]]
    assert batches.signed(mixed, True) == SIGNED[:3]
    assert batches.signed(MARKED, True) == SIGNED and batches.signed([], True) == []


def test_a_process_that_dies_is_made_up_for(batches: BatchSigner, clock: FakeClock) -> None:
    process = busy(batches)
    os.kill(process.pid, signal.SIGKILL)
    assert batches.signed(MARKED, True) == SIGNED
    assert batches.process is None and not is_running(process.pid)
    assert batches.signed(MARKED, True) == SIGNED
    assert batches.process is None, "not again at once"
    clock.now += FAILED_REST_S
    busy(batches)


def test_a_process_that_is_not_alone_signs_here(batches: BatchSigner) -> None:
    assert batches.signed(MARKED, False) == SIGNED
    assert batches.process is None
    process = busy(batches)
    assert batches.signed(MARKED, False) == SIGNED
    assert batches.process is None and not is_running(process.pid)


def test_a_process_that_does_not_answer_is_given_up(batches: BatchSigner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_signing, "ANSWER_S", 0.05)
    process = busy(batches)
    os.kill(process.pid, signal.SIGSTOP)
    assert batches.signed(MARKED[:5], True) == SIGNED[:5]
    assert batches.process is None and not is_running(process.pid)


def test_closing_does_not_wait_for_a_process_that_is_stopped(batches: BatchSigner) -> None:
    """The batch is larger than a pipe, so that the thread waits to write."""
    os.kill(busy(batches).pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as thread:
        signing = thread.submit(batches.signed, MARKED * 2, True)
        batches.interrupt()
        assert signing.result(PATIENCE_S) == SIGNED * 2


def test_ctrl_c_is_the_parents_to_decide(batches: BatchSigner) -> None:
    os.kill(busy(batches).pid, signal.SIGINT)
    assert batches.signed(MARKED, True) == SIGNED
    assert batches.process is not None


@pytest.mark.parametrize("program", ["/no/such/python", "/bin/false"])
def test_a_process_that_cannot_start_is_done_without(
    batches: BatchSigner, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)

    def has_given_up() -> bool:
        assert batches.signed(MARKED, True) == SIGNED
        return batches.process is None

    eventually(has_given_up)


def test_a_machine_with_one_core_has_no_use_for_it(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    batches = BatchSigner(SIGNER, clock)
    assert batches.signed(MARKED, True) == SIGNED and batches.process is None


def test_it_ends_when_there_is_nothing_to_do(batches: BatchSigner, clock: FakeClock) -> None:
    process = busy(batches)
    batches.rest()
    assert batches.process is process
    assert batches.patience == IDLE_S
    clock.now += IDLE_S
    batches.rest()
    assert batches.process is None and not is_running(process.pid)


def test_it_ends_with_a_parent_that_is_killed() -> None:
    program = (
        "from hocket.log.batch_signing import SigningProcess\n"
        "process = SigningProcess(bytes(32))\n"
        "while not process.is_ready: pass\n"
        "print(process.pid, flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    eventually(lambda: not is_running(child) or _is_zombie(child))


def _is_zombie(pid: int) -> bool:
    """Where nobody reaps orphans, as in some containers."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_log_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that writes many ops has them all signed and sealed, and leaves no process behind."""
    from hocket.node.runtime import Runtime

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(batch_signing, "BUSY_OPS", 0)
    monkeypatch.setattr(sealing, "ALONE_S", 0.0)
    started: list[int] = []

    class Watched(SigningProcess):
        def __init__(self, seed: bytes) -> None:
            super().__init__(seed)
            started.append(self.pid)

    monkeypatch.setattr(batch_signing, "SigningProcess", Watched)
    with Runtime.init(tmp_path / "home") as runtime:
        deadline = time.monotonic() + PATIENCE_S
        for _ in range(40):
            runtime.log.append_plain("k", b"{}")
            time.sleep(0.01)
            assert time.monotonic() < deadline
    assert started and not any(is_running(pid) for pid in started)
    with Runtime.open(tmp_path / "home") as runtime:
        assert runtime.verify().findings == []
