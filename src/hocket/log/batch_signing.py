"""Signs the ops of one process, many at a time. Signing is the most expensive step of an op, and a thread that signs
slows the others, because they share the interpreter. Under load a separate process therefore signs the ops.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hocket.kernel.keys import SIGNATURE_BYTES
from hocket.kernel.signing import OpSigner, is_marked

# The signer starts a process when it signs more ops than this in one second.
BUSY_OPS = 1_000
# The process ends after this long without ops.
IDLE_S = 3.0
# A signing process that has not answered by then has failed.
ANSWER_S = 10.0
# After a signing process has failed, the signer itself signs for this long.
FAILED_REST_S = 60.0
_PROGRAM = Path(__file__).with_name("signing_child.py")


class SigningProcess:
    """A process that signs with a key. It can sign once it `is_ready`."""

    def __init__(self, seed: bytes) -> None:
        import subprocess

        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._is_ready = False
        try:
            self._write(seed)
        except OSError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Raises OSError if the process could not start."""
        if not self._is_ready and self._answers_within(0):
            self._read(1)
            self._is_ready = True
        return self._is_ready

    def sign(self, messages: Sequence[bytes]) -> list[bytes]:
        """Raises OSError if the process is gone."""
        import struct

        sizes = struct.pack(f">I{len(messages)}I", len(messages), *map(len, messages))
        self._write(b"".join((sizes, *messages)))
        if not self._answers_within(ANSWER_S):
            raise OSError("the signing process does not answer")
        answer = self._read(len(messages) * SIGNATURE_BYTES)
        return [answer[at : at + SIGNATURE_BYTES] for at in range(0, len(answer), SIGNATURE_BYTES)]

    def kill(self) -> None:
        """Ends the process. A `sign` in another thread raises OSError."""
        self._process.kill()

    def close(self) -> None:
        for end in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                end.close()  # type: ignore[union-attr]
        self.kill()
        self._process.wait()

    def _answers_within(self, seconds: float) -> bool:
        import select

        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise OSError("the signing process has ended")
        return data


class BatchSigner:
    """For one thread. `monotonic` tells the time."""

    def __init__(self, signer: OpSigner, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._signer = signer
        self._monotonic = monotonic
        self.process: SigningProcess | None = None
        self._second_began = 0.0
        self._signed_since = 0
        self._used_at = 0.0
        self._rests_until = 0.0 if (os.cpu_count() or 1) > 1 else float("inf")

    def signed(self, ops: Sequence[bytes], is_alone: bool) -> list[bytes]:
        """Signs the ops that this process has marked; returns the others unchanged. A process that `is_alone` shares
        its store with no other writer. One that is not spends much of its time waiting for the others, and a thread
        signs meanwhile.
        """
        if is_alone:
            self._count(len(ops))
        else:
            self.close()
        try:
            if self.process is not None and self.process.is_ready:
                messages = [self._signer.message(op) for op in ops if is_marked(op)]
                signatures = iter(self.process.sign(messages))
                return [self._signer.completed(op, next(signatures)) if is_marked(op) else op for op in ops]
        except OSError:
            self._give_up()
        return [self._signer.signed_unchecked(op) for op in ops]

    @property
    def patience(self) -> float | None:
        """How long without ops until `rest` is due, None for never."""
        return None if self.process is None else IDLE_S

    def rest(self) -> None:
        """Ends the signing process if it was idle long enough."""
        if self._monotonic() - self._used_at >= IDLE_S:
            self.close()

    def interrupt(self) -> None:
        """Called by another thread: `signed` waits for the process no longer."""
        if (process := self.process) is not None:
            process.kill()

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None

    def _count(self, ops: int) -> None:
        now = self._used_at = self._monotonic()
        if now - self._second_began > 1.0:
            self._second_began, self._signed_since = now, 0
        self._signed_since += ops
        if self.process is None and self._signed_since > BUSY_OPS and now >= self._rests_until:
            try:
                self.process = SigningProcess(self._signer.seed)
            except OSError:
                self._give_up()

    def _give_up(self) -> None:
        self.close()
        self._rests_until = self._monotonic() + FAILED_REST_S
