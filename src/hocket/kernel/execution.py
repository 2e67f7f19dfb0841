"""One run of a command as values: what ran, on what, how it ended, what it used and produced. `proof` and `intoto`
encode it, each in its own format.
"""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


class Output(msgspec.Struct, frozen=True):
    """An output file of the command; the path is relative to the job's directory."""

    path: str
    hash: bytes
    size: int


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
    gpu_s: dict[str, Amount] = {}


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
