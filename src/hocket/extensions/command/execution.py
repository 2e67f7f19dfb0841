"""One run of a command as values: what ran, on what, how it ended, what it used and produced. `proof` and `intoto`
encode it, each in its own format.
"""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
# No run uses more of anything than this: 30,000 years of a processor.
AMOUNT_MAX = 1e12
Amount = Annotated[float, msgspec.Meta(ge=0, le=AMOUNT_MAX)]
# More than the highest rates make of the largest amounts.
Cost = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
DeviceClass = Annotated[str, msgspec.Meta(max_length=256)]
# The most that one machine can have, and the bytes that it can move in a second.
PROCESSORS_MAX = 4_096
DEVICES_MAX = 256
MEMORY_GB_MAX = 65_536
BYTES_PER_S_MAX = 10**12
# By how much the clock of the log may differ from that of the machine that measured.
SPAN_SLACK_MS = 60_000


class Output(msgspec.Struct, frozen=True):
    """An output file of the command; the path is relative to the job's directory. `sha256` is for the tools of others,
    which know no BLAKE3; earlier proofs have none.
    """

    path: str
    hash: bytes
    size: int
    sha256: bytes | None = None


class Stream(msgspec.Struct, frozen=True):
    """What was kept of stdout or stderr, and how many bytes the command wrote to it."""

    hash: bytes
    size: int
    written: int


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a command used. `None` means not measured."""

    wall_s: Amount = 0.0
    cpu_s: Amount = 0.0
    memory_peak_bytes: Count = 0
    memory_gb_s: Amount = 0.0
    disk_read_bytes: Count = 0
    disk_written_bytes: Count = 0
    network_bytes: Count | None = None
    gpu_s: Annotated[dict[DeviceClass, Amount], msgspec.Meta(max_length=DEVICES_MAX)] = {}

    def fits(self, span_ms: int) -> bool:
        """Whether one machine can have used this much in so long a time, by the clock of the log."""
        span_s = (span_ms + SPAN_SLACK_MS) / 1000
        moved_bytes = self.disk_read_bytes + self.disk_written_bytes + (self.network_bytes or 0)
        return (
            self.wall_s <= span_s
            and self.cpu_s <= span_s * PROCESSORS_MAX
            and sum(self.gpu_s.values()) <= span_s * DEVICES_MAX
            and self.memory_gb_s <= span_s * MEMORY_GB_MAX
            and moved_bytes <= span_s * BYTES_PER_S_MAX
        )


class Charged(msgspec.Struct, frozen=True):
    """What a run cost by the worker's rate card, which has the hash `rates`. `over` says why a cap stopped it; empty if
    none did.
    """

    cost: float
    currency: str
    rates: bytes
    over: str = ""


class RunnerProgram(msgspec.Struct, frozen=True):
    """The runner: the hash of its program, its version, and the platform, like `linux/x86_64`."""

    program: bytes
    version: str
    platform: str


class Execution(msgspec.Struct, frozen=True):
    """One run of a command. `job` is its ULID on the log; `signal` is the number of the signal that killed it, and then
    there is no exit code.
    """

    content_id: bytes
    argv: tuple[str, ...]
    exit_code: int | None
    signal: int | None
    timed_out: bool
    started_at_ms: int
    finished_at_ms: int
    inputs: tuple[bytes, ...]
    outputs: tuple[Output, ...]
    resources: Resources
    fence: int
    job: str
    runner: RunnerProgram
    stdout: Stream | None = None
    stderr: Stream | None = None
    charge: Charged | None = None
