"""Job options as the command line spells them, and where payloads come from. `policy` decides what the options mean.
Files are read up to a limit, and written whole or not at all, readable only by their owner. Also the options for the
log lines of long-running commands, which `long_running` prints.
"""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from hocket.cli.declarations import Option, OptionGroup
from hocket.errors import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hocket.kernel.policy import Score


ArchiveOption = Annotated[
    str | None, Option("--archive", "DIR|ADDRESS", "Where to look if the log no longer has it: an archive.")
]
PAYLOAD_READ_MAX = 8 * 1024 * 1024

# The options of a job, in the order in which help lists them: name, type, what its value is called, help.
_JOB: tuple[tuple[str, Any, str | None, str], ...] = (
    ("priority", int, "N", "Higher runs sooner; default 0."),
    ("after", list[str], "JOB", "Start when that job has succeeded; may be repeated."),
    ("not_before", str, "TIME", "Start no earlier: ISO-8601, +30s from now, or milliseconds since 1970."),
    ("retries", int, "N", "How often to retry a failed job."),
    ("lease", str, "DURATION", "How long a claim lasts unless renewed: 30s, or 4b in beats."),
    ("timeout", str, "DURATION", "How long one run may take before it fails; 0: no limit."),
    ("ttl", str, "DURATION", "Cancel it if no worker has begun it within this time, like 30s."),
    ("approval_by", str, "AGENT", "Start only when this agent has approved it: alice, or alice@NODE for one node."),
    ("approval_within", str, "DURATION", "Cancel it if it was not approved within this time."),
    ("questions_to", str, "AGENT", "Who answers what it asks while it runs; default: the owner of this node."),
    ("unique", str, "KEY", "Allow only one active job of this kind and key."),
    ("unique_for", str, "DURATION", "Also for this long after the job was submitted."),
    ("concurrency", int, "N", "How many jobs of this kind run at once."),
    ("rate", str, "N/TIME", "How many of this kind may start per time: 10/s, 100/5m."),
    ("backoff", str, "DURATION", "Wait before the first retry; doubles each time."),
    ("backoff_max", str, "DURATION", "The longest wait between two tries."),
    ("open", bool, None, "Any node may claim it without asking the coordinator; two nodes may run it."),
    ("needs", list[str], "LABEL", "Only workers with this label: gpu, or gpu=a100; may be repeated."),
    ("tags", list[str], "TAG", "A word to find it by: nightly, or team=video; may be repeated."),
    ("index", list[str], "PATH", "Find it by this member of its payload: frame, or camera.name; may be repeated."),
    ("content_apart", str, "SIZE", "Keep a payload or result of this size or more off the log; 0: any. Erasable."),
    ("claim", str, "HOW", "How it finds its worker: first, rendezvous (by rank) or sticky."),
    ("sticky", str, "MEMBER", "For --claim sticky: the member of the payload that is the key."),
    ("claim_timeout", str, "DURATION", "How long each rank waits for the one before; 5s."),
    ("max_cost", float, "AMOUNT", "Stop it when it has cost this much, by the worker's rate card."),
    ("max_bu", int, "N", "Stop it when all its runs have used so many beats."),
    ("per_beat", list[str], "NAME=AMOUNT", "Stop it if one beat uses more: cpu_sec=8, cost=0.1; may be repeated."),
    ("phase_cap", list[str], "PHASE=BEATS", "The most beats of plan, work or review; may be repeated."),
    ("wait_cap", list[str], "WAIT=BEATS", "The most beats of waits for help or io; may be repeated."),
    ("hard_end", str, "bar+N", "End it on the Nth downbeat after its submit."),
    ("charge_to", str, "ACCOUNT", "The account that pays for it."),
    ("budget_file", str, "FILE", "Its caps, as a YAML block `budget:`; the options above go first."),
    ("score_file", str, "FILE", "Its beats: phases, waits, tries. See `hocket tempo score check`."),
)
_FLAGS = {"open": "--open/--no-open", "budget_file": "--budget", "score_file": "--score", "tags": "--tag"}
JOB: dict[str, Any] = {
    name: Annotated[
        kind | None, Option(_FLAGS.get(name, f"--{name.replace('_', '-')}"), metavar, help, show_default=False)
    ]
    for name, kind, metavar, help in _JOB
}
_BUDGET = ("max_cost", "max_bu", "per_beat", "phase_cap", "wait_cap", "hard_end", "budget_file", "charge_to")
_OF_SCHEDULES = ("priority", "retries", "lease", "timeout", "concurrency", "rate", "backoff", "backoff_max", "needs")
# Of a command.
RUN = {name: JOB[name] for name in ("priority", "retries", "content_apart", *_BUDGET)}

JobOptions = Annotated[dict[str, Any], OptionGroup(JOB)]
RunOptions = Annotated[dict[str, Any], OptionGroup(RUN)]
# For operations: the options of jobs, and those that the jobs of a schedule may have.
GROUPS = {"jobs": JOB, "schedules": {name: JOB[name] for name in _OF_SCHEDULES}}


def checked_agent(name: str | None) -> str | None:
    from hocket.families.inbox.requests import check_agent

    return None if name is None else check_agent(name)


Agent = Annotated[
    str | None,
    Option(
        "--agent", "NAME", "The agent that you act for. Default: $HOCKET_AGENT, else your user.", callback=checked_agent
    ),
]
ProcessAgent = Annotated[
    str | None,
    Option(
        "--agent",
        "NAME",
        "The agent that you act for. Default: $HOCKET_AGENT, else this process.",
        envvar="HOCKET_AGENT",
        callback=checked_agent,
    ),
]


def _job_state(text: str | None) -> str | None:
    from hocket.api.job_lists import query

    return None if (state := query(text).state) is None else state.value


StateOption = Annotated[
    str | None,
    Option(
        "--state",
        "STATE",
        "Only jobs in this state: pending (or ready, delayed, blocked), running, succeeded, failed, cancelled.",
        callback=_job_state,
    ),
]


def job_options(values: "Mapping[str, Any]", directory: str = "") -> dict[str, Any]:
    """The options of a job that a command line names. Files are looked for in the directory."""
    plain = {
        name: value
        for name, value in values.items()
        if name not in (*_BUDGET, "score_file") and value not in (None, [])
    }
    budget = _budget(values, directory) if "max_cost" in values else None
    return plain | given(budget=budget, score=_score(values.get("score_file")))


def _score(file: str | None) -> "Score | None":
    """The score in a file, - for standard input."""
    if file is None:
        return None
    from hocket.kernel.extension import part
    from hocket.kernel.yaml_subset import TEXT_BYTES_MAX

    try:
        score: Score = part("members", "score")(read_file(file, TEXT_BYTES_MAX))
        return score
    except ValueError as error:
        raise Usage(f"{'standard input' if file == '-' else file}: {error}") from None


def _budget(params: "Mapping[str, Any]", directory: str = "") -> "dict[str, Any] | None":
    """The budget that the options of a command name, if any. A file is looked for in the directory."""
    named = given(**{name: params[name] for name in ("max_cost", "max_bu", "charge_to", "hard_end")})
    for option, member, example in _CAPS:
        if params[option]:
            named[member] = dict(_cap(each, option, example) for each in params[option])
    if params["budget_file"] is None:
        return named or None
    import msgspec

    from hocket.kernel.extension import part
    from hocket.kernel.yaml_subset import TEXT_BYTES_MAX

    data = read_file(str(Path(directory, params["budget_file"])), TEXT_BYTES_MAX)
    try:
        return dict(msgspec.to_builtins(part("members", "budget")(data))) | named
    except ValueError as error:
        raise Usage(f"bad budget in {params['budget_file']}: {error}") from None


_CAPS = (
    ("per_beat", "per_beat", "cpu_sec=8"),
    ("phase_cap", "phase_caps", "work=4"),
    ("wait_cap", "wait_caps", "help=2"),
)


def _cap(text: str, option: str, example: str) -> tuple[str, float | int]:
    name, _, amount = text.partition("=")
    try:
        return name, float(amount) if option == "per_beat" else int(amount)
    except ValueError:
        raise Usage(f"bad --{option.replace('_', '-')} {text!r}; write it like {example}") from None


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def payload(text: str | None) -> Any:
    """The payload that an argument names: JSON itself, @FILE, or - for standard input."""
    if text is None:
        return {}
    if text == "-":
        return decoded(sys.stdin.buffer.read(PAYLOAD_READ_MAX), "standard input")
    if text.startswith("@"):
        try:
            with Path(text[1:]).open("rb") as file:
                return decoded(file.read(PAYLOAD_READ_MAX), text[1:])
        except OSError as error:
            raise Usage(f"cannot read the payload from {text[1:]}: {error.strerror}") from None
    return decoded(text.encode(errors="surrogateescape"), "the payload")


def decoded(data: bytes, where: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Usage(f"{where} is not JSON: {reason}") from None


def seconds(text: str | None, name: str) -> float | None:
    """A duration from the command line, in seconds."""
    from hocket.kernel.texts import duration_ms

    try:
        return None if text is None else duration_ms(text) / 1000
    except ValueError as error:
        raise Usage(f"bad {name}: {error}") from None


def milliseconds(text: str, name: str) -> int:
    """A duration from the command line, in milliseconds."""
    from hocket.kernel.texts import duration_ms

    try:
        return duration_ms(text)
    except ValueError as error:
        raise Usage(f"bad {name.lstrip('-')}: {error}") from None


class LogFormat(StrEnum):
    text = "text"
    json = "json"


VerboseOption = Annotated[
    int, Option("--verbose -v", count=True, help="Also log the start and end of each job; -vv logs everything.")
]
QuietOption = Annotated[int, Option("--quiet -q", count=True, help="Log only warnings and errors; -qq only errors.")]
BusOption = Annotated[
    str | None,
    Option("--bus", "URL", "The NATS servers for messages, like nats://a:4222,nats://b:4222; or $HOCKET_BUS."),
]
PolicyOption = Annotated[
    str | None, Option("--policy", "FILE", "The cluster's tempo policy. Default: tempo.yaml in the home.")
]
LogFormatOption = Annotated[
    LogFormat | None,
    Option("--log-format", help="The form of log lines. Default: text, or json with --json.", show_default=False),
]


def read_file(name: str, limit: int) -> bytes:
    """Reads a file, or standard input for -. Returns one byte more than the limit if there is more, so that the decoder
    can report that it is too long.
    """
    if name == "-":
        return sys.stdin.buffer.read(limit + 1)
    try:
        with Path(name).open("rb") as file:
            return file.read(limit + 1)
    except OSError as error:
        raise Usage(f"cannot read {name}: {error.strerror}") from None
    except ValueError as error:
        raise Usage(f"cannot read {name!r}: {error}") from None


def write_file(path: Path, data: bytes) -> None:
    """Replaces a file whole, or leaves it as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with private_file(temporary) as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Usage(f"cannot write {path}: {error.strerror}") from None


def private_file(path: Path) -> BinaryIO:
    """Creates a file that only its owner can read. Replaces any file of that name."""
    path.unlink(missing_ok=True)
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
