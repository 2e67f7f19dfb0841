"""`hocket tempo beat`, `ucxl`, `secret`, `score` and `promise`: which beat it is, which time an address means, and what
goes by beats. A beat follows from the time and the tempo policy alone, so the first two need no home.
"""

import time
from typing import TYPE_CHECKING, Annotated

from hocket.cli.declarations import App, Argument, Option
from hocket.cli.options import Agent, read_file
from hocket.cli.printing import emit, fields, say
from hocket.cli.settings import open_runtime, open_service
from hocket.errors import Failed, NotAuthorised, Usage

if TYPE_CHECKING:
    from hocket.extensions.tempo.policy import TempoPolicy
    from hocket.extensions.tempo.window_secret import ProjectSecret

CLUSTER_DEFAULT = "local"

AtOption = Annotated[
    int | None,
    Option("--at", metavar="UNIX_MS", min=0, max=2**43, help="At this time, in ms since 1970. Default: now."),
]
BpmOption = Annotated[int | None, Option("--bpm", metavar="N", help="Beats a minute, 1 to 1200; default 15.")]
BarOption = Annotated[int | None, Option("--bar", metavar="N", help="Beats a bar, 1 to 256; default 8.")]
ClusterPolicy = Annotated[
    str | None, Option("--policy", metavar="FILE", help="The cluster's tempo policy, in YAML or JSON.")
]

beat_app = App()
ucxl_app = App()


@beat_app.command()
def beat(
    at: AtOption = None,
    bpm: BpmOption = None,
    bar: BarOption = None,
    policy: ClusterPolicy = None,
) -> None:
    """Show the beat: its place in the bar, its phase, when it began, and the frame as a pulse would send it.

    \b
      hocket tempo beat
      hocket tempo beat --at 1756865547183 --bpm 15 --bar 8 --json
      hocket tempo beat --policy tempo.yaml
    """
    import msgspec

    from hocket.extensions.tempo.messages import make_frame
    from hocket.extensions.tempo.policy import policy_hash
    from hocket.kernel.clock import Hlc

    found, at_ms = _policy(policy, bpm, bar), _at(at)
    tempo = found.initial_tempo
    try:
        frame = make_frame(found.cluster_id, tempo, found.phases, policy_hash(found, tempo), at_ms, Hlc(at_ms, 0, 0))
    except ValueError:
        raise Usage(f"the beat at --at {at_ms} begins before 1970; give a later time") from None
    emit(frame)
    told = msgspec.to_builtins(frame) | {"downbeat": "yes" if frame.downbeat else "no"}
    fields([(name.replace("_", " "), value) for name, value in told.items()])


@ucxl_app.command()
def ucxl(
    address: Annotated[str, Argument(metavar="ADDRESS", help="Like ucxl://proj:any/*/task/ingest;beats=^^4.")],
    at: AtOption = None,
    bpm: BpmOption = None,
    bar: BarOption = None,
    policy: ClusterPolicy = None,
) -> None:
    """Parse a UCXL address and show the time that it means: ;beats=^^N is N beats from now, ;beats=~~N is N beats ago,
    and ;phase=plan, work or review is that phase of the bar. Quote it: a semicolon ends a command.

    \b
      hocket tempo ucxl 'ucxl://proj:any/*/task/ingest;beats=^^4;phase=work'
    """
    from hocket.extensions.tempo.beats import BadAddress, parse_ucxl, resolve_ucxl, ucxl_text
    from hocket.kernel.clock import wall_text

    found = _policy(policy, bpm, bar)
    try:
        parsed = parse_ucxl(address)
        resolved = resolve_ucxl(parsed, found.initial_tempo, found.phases, _at(at))
    except BadAddress as error:
        raise Usage(str(error)) from None
    told = {
        "address": ucxl_text(parsed),
        "authority": parsed.authority,
        "path": parsed.path,
        "beats": parsed.beats,
        "from": wall_text(resolved.from_ms),
        "until": wall_text(resolved.until_ms),
        "beat_index": resolved.beat_index,
        "window": wall_text(resolved.window_ms),
        "phase": resolved.phase,
    }
    emit(told)
    fields([(name.replace("_", " "), value) for name, value in told.items() if value is not None])


def _at(given: int | None) -> int:
    return time.time_ns() // 1_000_000 if given is None else given


def _policy(file: str | None, bpm: int | None, bar: int | None) -> "TempoPolicy":
    from hocket.extensions.tempo.beats import BAR_LEN_DEFAULT, BPM_DEFAULT
    from hocket.extensions.tempo.policy import FILE_BYTES_MAX, BadField, make_policy, read_policy

    if file is None:
        try:
            return make_policy(
                CLUSTER_DEFAULT, BPM_DEFAULT if bpm is None else bpm, BAR_LEN_DEFAULT if bar is None else bar
            )
        except BadField as error:
            option = "--bpm" if error.field == "initial_bpm" else "--bar"
            raise Usage(f"bad {option}: {error.problem}; {error.allowed}") from None
    if bpm is not None or bar is not None:
        raise Usage("--policy has a tempo of its own; leave out --bpm and --bar")
    try:
        return read_policy(read_file(file, FILE_BYTES_MAX))
    except BadField as error:
        raise Usage(f"{'standard input' if file == '-' else file}: {error}") from None


secret_app = App()

Project = Annotated[str, Argument(metavar="PROJECT", help="Like acme/web.")]
Role = Annotated[str, Argument(metavar="ROLE", help="Like deploy.")]
Message = Annotated[str, Argument(metavar="MESSAGE", help="What the token is for.")]
BARS_DEFAULT = 4


@secret_app.callback()
def secret_group() -> None:
    """Keys and tokens of a project and a role, which change on each downbeat. They are derived from window.secret in
    the home, so every node that has the same file has the same ones.

    \b
      hocket tempo secret key acme/web deploy
      hocket tempo secret token acme/web deploy 'release 7'
      hocket tempo secret check acme/web deploy 'release 7' hwt1.1756865536000.…
    """


@secret_app.command()
def key(project: Project, role: Role) -> None:
    """Print the key of a project and a role, which is in force until the next downbeat."""
    shown = _secret(project, role).key()
    emit(shown)
    say(shown.key)


@secret_app.command()
def token(project: Project, role: Role, message: Message) -> None:
    """Print a token for a message, stamped with the window."""
    made = _secret(project, role).token(message)
    emit({"token": made})
    say(made)


@secret_app.command()
def check(
    project: Project,
    role: Role,
    message: Message,
    given: Annotated[str, Argument(metavar="TOKEN", help="The token that came with the message.")],
    bars: Annotated[
        int, Option("--bars", metavar="N", help="A token is void so many bars after its own has begun.")
    ] = BARS_DEFAULT,
) -> None:
    """Check a token: exit code 4 if it is for something else, or void."""
    if not _secret(project, role, bars).is_valid(given, message):
        raise NotAuthorised("this token is void, or for another project, role or message")
    emit({"valid": True})
    say("valid")


def _secret(project: str, role: str, bars: int = BARS_DEFAULT) -> "ProjectSecret":
    from hocket.extensions.tempo.window_secret import project_secret

    with open_runtime() as runtime:
        return project_secret(runtime.home, project, role, runtime.log.physical, bars)


score_app = App()


@score_app.callback()
def score_group() -> None:
    """Scores: how many beats a task has for each phase and for its waits, how often it is tried, and what happens then.

    \b
      hocket tempo score check score.yaml
    """


@score_app.command("check")
def check_score(
    file: Annotated[str, Argument(metavar="FILE", help="A score in YAML or JSON; - reads stdin.")],
) -> None:
    """Check a score: exit code 0 if it is good, otherwise 1 with the wrong field, its line and what is allowed.

    \b
      hocket tempo score check score.yaml
      git show HEAD:score.yaml | hocket tempo score check -
    """
    from hocket.extensions.tempo.policy import FILE_BYTES_MAX, BadField
    from hocket.extensions.tempo.score import phrase_phases, read_score, score_json

    try:
        score = read_score(read_file(file, FILE_BYTES_MAX))
    except BadField as error:
        emit(
            {
                "good": False,
                "field": error.field or None,
                "line": error.line,
                "problem": error.problem,
                "allowed": error.allowed,
            }
        )
        raise Failed(f"{'standard input' if file == '-' else file}: {error}") from None
    phrases = [phrase_phases(score, phrase) for phrase in range(score.max_phrases)]
    emit({"good": True, "phrases": phrases} | score_json(score))
    for number, phases in enumerate(phrases, start=1):
        beats = ", ".join(f"{name} {length}" for name, length in phases.items())
        say(f"phrase {number}: {beats} of {score.bar_len} beats")
    waits = ", ".join(f"{name} {beats}" for name, beats in score.wait_budget.items())
    say(f"good: waits of at most {waits} beats")


promise_app = App()


@promise_app.command()
def promise(
    thread: Annotated[str, Argument(metavar="THREAD", help="The request for help: its id, or its beginning.")],
    beats: Annotated[int, Option("--beats", metavar="N", help="Help will come within so many beats.")],
    fail_after: Annotated[
        int | None,
        Option("--fail-after", metavar="N", help="The thread closes after so many beats. Default: twice that."),
    ] = None,
    confidence: Annotated[float, Option("--confidence", metavar="P", help="How sure you are, from 0 to 1.")] = 1.0,
    on_fail: Annotated[
        str, Option("--on-fail", metavar="NAME", help="What the requester does if no help comes.")
    ] = "fallback",
    agent: Agent = None,
) -> None:
    """Promise help to the agent that has sent a request of the type help. The help itself is a reply to the request.

    The requester waits until the promise fails, or until its own budget is spent. Help in time counts as kept, help
    until the thread closes as late; otherwise the promise is broken.

    \b
      hocket mail inbox --agent editor --claim 1
      hocket tempo promise 01JC8M… --beats 2 --fail-after 4 --confidence 0.8 --agent editor
      hocket mail send writer@gpu-box 'here it is' --reply-to 01JC8M… --agent editor
    """
    from hocket.extensions.tempo.promises import send_promise

    with open_service() as service:
        shown = send_promise(service, thread, beats, fail_after, confidence, on_fail, agent or "")
    emit(shown)
    say(shown.id)
