"""The tempo policy of a cluster: the file that every pulse and every agent has, and its hash. The hash covers the tempo
in force with its anchor too, so a frame whose hash agrees also has the bars of this cluster.

An adaptive tempo has a PI controller that makes the beat faster when work piles up and slower when agents idle, overrun
their phases or break their promises. Its guardrails: it moves only when it wants more than the policy's hysteresis, by
one beat a minute at most once a minute, within the limits, on a downbeat, and not at all during an incident. Where it
leaves the tempo as it is, it may move a beat of the bar from one phase to another, under the same guardrails.

Errors in the fields of a small YAML or JSON file, like that of a policy or a score, name the field, its line and what
is allowed there.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from hocket.extensions.tempo.beats import (
    BAR_LEN_DEFAULT,
    BPM_DEFAULT,
    BPM_MAX,
    BPM_MIN,
    PHASE_NAMES,
    Phases,
    Tempo,
    TempoChange,
    changed,
    make_tempo,
    phases_of_names,
)
from hocket.extensions.tempo.messages import NAME_CHARS_MAX, BarReport
from hocket.kernel.jws import canonical_plain
from hocket.kernel.policy import BAR_LEN_MAX
from hocket.kernel.yaml_subset import BadText, line_of, read_text

HYSTERESIS_PCT_DEFAULT = 10
_one_of_the_phases = f"write {', '.join(PHASE_NAMES)}"
FILE_BYTES_MAX = 64 * 1024
_SHOWN_CHARS = 60
_LINE = re.compile("line ([0-9]+): ")
T = TypeVar("T")
FieldPath = tuple[str | int, ...]
CHANGE_MS = 60_000
# The load at which the tempo is right: slots mostly busy, and a short queue.
_LOAD_TARGET = 0.9
_STRAIN_WEIGHT = 2.0
# A phase that more than this share of the tasks overrun gets a beat of another.
_OVERRUN_SHARE = 0.2
_PROPORTIONAL = 0.5
_INTEGRAL = 0.1
_INTEGRAL_MAX = 10.0


class BadField(ValueError):
    """`field` is empty if the file as a whole is wrong."""

    def __init__(self, path: FieldPath, problem: str, allowed: str, line: int | None = None) -> None:
        self.path, self.problem, self.allowed, self.line = path, problem, allowed, line
        self.field = ".".join(map(str, path))

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.field}{': ' if self.field else ''}{self.problem}; {self.allowed}"


def read_fields(text: bytes, read: Callable[["Fields"], T]) -> T:
    """Reads a file and passes its fields to `read`. Raises BadField."""
    if len(text) > FILE_BYTES_MAX:
        raise BadField((), f"the file is longer than {FILE_BYTES_MAX} bytes", "write less")
    try:
        value = read_text(text)
    except BadText as error:
        found = _LINE.match(str(error))
        problem, line = (str(error)[found.end() :], int(found[1])) if found else (str(error), None)
        raise BadField((), f"the file cannot be read: {problem}", "write plain YAML or JSON", line) from None
    with _lines(text):
        return read(fields_of(value))


def fields_of(value: object, path: FieldPath = ()) -> "Fields":
    if not isinstance(value, dict):
        raise BadField(path, f"{_shown(value)} is not a mapping", "write fields with their values")
    return Fields(value, path)


@contextmanager
def _lines(text: bytes) -> Iterator[None]:
    try:
        yield
    except BadField as error:
        raise BadField(error.path, error.problem, error.allowed, line_of(text, error.path)) from None


class Fields:
    """The members of one mapping. Each is read by the name and the form that it must have."""

    def __init__(self, members: dict[str, object], path: FieldPath) -> None:
        self._members, self._path = members, path

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def only(self, known: Collection[str], required: Collection[str] = ()) -> "Fields":
        for name in self._members:
            if name not in known:
                raise self.wrong(name, "unknown field", f"known are {', '.join(known)}")
        for name in required:
            if name not in self._members:
                raise self.wrong(name, "the field is missing", f"required are {', '.join(required)}")
        return self

    def mapping(self, name: str) -> "Fields":
        """An empty one if the field is not there."""
        return fields_of(self._members.get(name, {}), (*self._path, name))

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = self._members.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(name, f"{_shown(value)} is not allowed", f"write a whole number from {least} to {most}")
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self._members.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, f"{_shown(value)} is not allowed", "write true or false")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self._members.get(name, default)
        if value not in choices:
            raise self.wrong(name, f"{_shown(value)} is not allowed", f"write {' or '.join(choices)}")
        return str(value)

    def text(self, name: str, is_good: Callable[[str], bool], allowed: str) -> str:
        value = self._members.get(name)
        if not isinstance(value, str) or not is_good(value):
            raise self.wrong(name, f"{_shown(value)} is not allowed", allowed)
        return value

    def texts(self, name: str, most: int, is_good: Callable[[str], bool], allowed: str) -> tuple[str, ...]:
        """An empty tuple if the field is not there."""
        value = self._members.get(name, [])
        if not isinstance(value, list) or len(value) > most:
            raise self.wrong(name, f"{_shown(value)} is not allowed", f"write a list of at most {most} texts")
        for place, each in enumerate(value):
            if not isinstance(each, str) or not is_good(each):
                raise BadField((*self._path, name, place), f"{_shown(each)} is not allowed", allowed)
        return tuple(value)

    def is_list(self, name: str) -> bool:
        return isinstance(self._members.get(name), list)

    def wrong(self, name: str, problem: str, allowed: str) -> BadField:
        return BadField((*self._path, name), problem, allowed)


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


class TempoPolicy(msgspec.Struct, frozen=True):
    """`phases` has the beats of each phase. `anchor_ms` is any downbeat of the first tempo."""

    cluster_id: str
    initial_bpm: int
    bar_len_beats: int
    phases: dict[str, int]
    min_bpm: int = BPM_MIN
    max_bpm: int = BPM_MAX
    is_adaptive: bool = False
    hysteresis_pct: int = HYSTERESIS_PCT_DEFAULT
    emit_bar_reports: bool = True
    anchor_ms: int = 0

    @property
    def initial_tempo(self) -> Tempo:
        return make_tempo(self.initial_bpm, self.bar_len_beats, self.anchor_ms)


def read_policy(text: bytes) -> TempoPolicy:
    """From YAML or JSON. Raises BadField."""
    return read_fields(text, _file)


def make_policy(cluster_id: str, bpm: int = BPM_DEFAULT, bar_len: int = BAR_LEN_DEFAULT) -> TempoPolicy:
    """Raises BadField."""
    given = {"cluster_id": cluster_id, "initial_bpm": bpm, "bar_len_beats": bar_len}
    return _file(fields_of(given))


def policy_json(policy: TempoPolicy) -> dict[str, Any]:
    """As `read_policy` reads it, every default written out."""
    return {
        "cluster_id": policy.cluster_id,
        "initial_bpm": policy.initial_bpm,
        "bar_len_beats": policy.bar_len_beats,
        "phases": dict(policy.phases),
        "limits": {"min_bpm": policy.min_bpm, "max_bpm": policy.max_bpm},
        "adaptation": {
            "enable": policy.is_adaptive,
            "hysteresis_pct": policy.hysteresis_pct,
            "change_per_minute": "1_beat",
        },
        "observability": {"emit_bar_reports": policy.emit_bar_reports},
        "anchor_ms": policy.anchor_ms,
    }


def policy_hash(policy: TempoPolicy, tempo: Tempo) -> str:
    """The hash of the policy with the tempo that is in force."""
    in_force = {"tempo": {"bpm": tempo.bpm, "bar_len": tempo.bar_len, "anchor_ms": tempo.anchor_ms}}
    return f"sha256:{sha256(canonical_plain(policy_json(policy) | in_force)).hexdigest()}"


def _file(fields: Fields) -> TempoPolicy:
    fields.only(
        (
            *("cluster_id", "initial_bpm", "bar_len_beats", "phases", "limits", "adaptation", "observability"),
            "anchor_ms",
        ),
        ("cluster_id",),
    )
    limits = fields.mapping("limits").only(("min_bpm", "max_bpm"))
    least = limits.whole("min_bpm", BPM_MIN, BPM_MAX, BPM_MIN)
    most = limits.whole("max_bpm", least, BPM_MAX, BPM_MAX)
    bar_len = fields.whole("bar_len_beats", 1, BAR_LEN_MAX, BAR_LEN_DEFAULT)
    adaptation = fields.mapping("adaptation").only(("enable", "hysteresis_pct", "change_per_minute"))
    adaptation.choice("change_per_minute", ("1_beat",), "1_beat")
    observability = fields.mapping("observability").only(("emit_bar_reports",))
    return TempoPolicy(
        cluster_id=fields.text("cluster_id", _is_name, f"write a text of 1 to {NAME_CHARS_MAX} printable characters"),
        initial_bpm=fields.whole("initial_bpm", least, most, min(max(BPM_DEFAULT, least), most)),
        bar_len_beats=bar_len,
        phases=_phases(fields, bar_len),
        min_bpm=least,
        max_bpm=most,
        is_adaptive=adaptation.truth("enable", False),
        hysteresis_pct=adaptation.whole("hysteresis_pct", 1, 100, HYSTERESIS_PCT_DEFAULT),
        emit_bar_reports=observability.truth("emit_bar_reports", True),
        anchor_ms=fields.whole("anchor_ms", 0, 2**53 - 1, 0),
    )


def _phases(fields: Fields, bar_len: int) -> dict[str, int]:
    """A list shares out the bar; a mapping has the beats of each phase, as in a score."""
    if "phases" not in fields:
        return phases_of_names(PHASE_NAMES, bar_len)
    if fields.is_list("phases"):
        names = fields.texts("phases", len(PHASE_NAMES), lambda name: name in PHASE_NAMES, _one_of_the_phases)
        if not names or len({*names}) < len(names):
            raise fields.wrong("phases", "there is no phase, or one twice", _one_of_the_phases)
        return phases_of_names([name for name in PHASE_NAMES if name in names], bar_len)
    given = fields.mapping("phases").only(PHASE_NAMES)
    phases = {name: given.whole(name, 0, bar_len) for name in PHASE_NAMES if name in given}
    if not 0 < sum(phases.values()) <= bar_len:
        raise fields.wrong("phases", f"they have {sum(phases.values())} beats", f"a bar has {bar_len}")
    return phases


def _is_name(text: str) -> bool:
    return 0 < len(text) <= NAME_CHARS_MAX and text.isprintable()


class ControlState(msgspec.Struct, frozen=True):
    """`integral` is the sum of the errors so far; `changed_ms` is the downbeat of the last change, if there was one."""

    integral: float = 0.0
    changed_ms: int | None = None


def load_error(report: BarReport) -> float:
    """How far the window was from the right load: positive if the beat should be faster."""
    tasks = max(1, report.tasks)
    promises = max(1, report.kept_promises + report.late_promises + report.broken_promises)
    # The role with the deepest queue decides: it needs the beat most.
    depth = max(report.queue_by_role.values(), default=report.queue_depth)
    queue = depth / (depth + tasks)
    busy = max(report.utilisation, report.cpu_utilisation, report.gpu_utilisation or 0.0)
    strain = max(min(1.0, report.overruns / tasks), report.broken_promises / promises)
    return queue + busy - _LOAD_TARGET - _STRAIN_WEIGHT * strain


def suggested_bpm(policy: TempoPolicy, bpm: int, error: float) -> int:
    """The tempo that one window alone asks for. Every node that has the window computes the same."""
    return _step(policy, bpm, bpm * (1 + _PROPORTIONAL * error))


def control(
    policy: TempoPolicy, state: ControlState, tempo: Tempo, report: BarReport, now_ms: int, *, is_frozen: bool
) -> tuple[ControlState, TempoChange | None]:
    """Call this once for each bar, with the report of the last one. Frozen means an incident or a missing leader:
    nothing changes then, and nothing is added up.
    """
    if is_frozen or not policy.is_adaptive:
        return state, None
    error = load_error(report)
    total = min(_INTEGRAL_MAX, max(-_INTEGRAL_MAX, state.integral + error))
    wanted = policy.initial_bpm * (1 + _PROPORTIONAL * error + _INTEGRAL * total)
    # At a limit nothing more is added up in its direction, or leaving the limit would take as long as it was held.
    integral = state.integral if _is_beyond(policy, wanted, error) else total
    change = changed(tempo, _step(policy, tempo.bpm, wanted), now_ms)
    is_early = state.changed_ms is not None and change.since_ms - state.changed_ms < CHANGE_MS
    if change.tempo.bpm == tempo.bpm or is_early:
        return ControlState(integral, state.changed_ms), None
    return ControlState(integral, change.since_ms), change


def redistribute(policy: TempoPolicy, phases: Phases, report: BarReport) -> dict[str, int] | None:
    """Phases with one beat moved to the one that most tasks overrun, if these are many, from the longest that none
    does; None if nothing is to move. The bar keeps its beats, and each phase one at least.
    """
    overrun = report.overruns_by_phase
    short = max((name for name in phases if phases[name]), key=lambda name: overrun.get(name, 0), default="")
    if overrun.get(short, 0) <= _OVERRUN_SHARE * report.tasks:
        return None
    spare = [name for name in phases if name != short and phases[name] > 1 and not overrun.get(name)]
    if not spare:
        return None
    longest = max(spare, key=lambda name: phases[name])
    return {name: beats + (name == short) - (name == longest) for name, beats in phases.items()}


def _is_beyond(policy: TempoPolicy, wanted: float, error: float) -> bool:
    return (wanted > policy.max_bpm and error > 0) or (wanted < policy.min_bpm and error < 0)


def _step(policy: TempoPolicy, bpm: int, wanted: float) -> int:
    """One beat a minute towards the wanted tempo, if that is far enough away."""
    if abs(wanted - bpm) * 100 <= policy.hysteresis_pct * bpm:
        return bpm
    return min(policy.max_bpm, max(policy.min_bpm, bpm + (1 if wanted > bpm else -1)))
