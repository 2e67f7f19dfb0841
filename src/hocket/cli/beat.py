"""`hocket beat` and `hocket ucxl`: which beat it is, and which time an address means. Both need no home: a beat follows
from the time and the tempo policy alone.
"""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.files import read_file
from hocket.cli.output import emit, fields
from hocket.errors import Usage

if TYPE_CHECKING:
    from hocket.kernel.beats.policy import TempoPolicy

CLUSTER_DEFAULT = "local"

AtOption = Annotated[
    int | None,
    typer.Option("--at", metavar="UNIX_MS", min=0, max=2**43, help="At this time, in ms since 1970. Default: now."),
]
BpmOption = Annotated[int | None, typer.Option("--bpm", metavar="N", help="Beats a minute, 1 to 1200; default 15.")]
BarOption = Annotated[int | None, typer.Option("--bar", metavar="N", help="Beats a bar, 1 to 256; default 8.")]
PolicyOption = Annotated[
    str | None, typer.Option("--policy", metavar="FILE", help="The cluster's tempo policy, in YAML or JSON.")
]

beat_app = new_app()
ucxl_app = new_app()


@beat_app.command()
def beat(
    at: AtOption = None,
    bpm: BpmOption = None,
    bar: BarOption = None,
    policy: PolicyOption = None,
) -> None:
    """Show the beat: its place in the bar, its phase, when it began, and the frame as a pulse would send it.

    \b
      hocket beat
      hocket beat --at 1756865547183 --bpm 15 --bar 8 --json
      hocket beat --policy tempo.yaml
    """
    import msgspec

    from hocket.kernel.beats.messages import make_frame
    from hocket.kernel.beats.policy import policy_hash
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
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Like ucxl://proj:any/*/task/ingest;beats=^^4.")],
    at: AtOption = None,
    bpm: BpmOption = None,
    bar: BarOption = None,
    policy: PolicyOption = None,
) -> None:
    """Parse a UCXL address and show the time that it means: ;beats=^^N is N beats from now, ;beats=~~N is N beats ago,
    and ;phase=plan, work or review is that phase of the bar. Quote it: a semicolon ends a command.

    \b
      hocket ucxl 'ucxl://proj:any/*/task/ingest;beats=^^4;phase=work'
    """
    from hocket.kernel.beats.ucxl import BadAddress, parse_ucxl, resolve_ucxl, ucxl_text
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
    from hocket.kernel.beats.file_fields import FILE_BYTES_MAX, BadField
    from hocket.kernel.beats.policy import make_policy, read_policy
    from hocket.kernel.beats.tempo import BAR_LEN_DEFAULT, BPM_DEFAULT

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
