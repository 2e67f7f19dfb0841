"""The tempo policy of a cluster: the file that every pulse and every agent has, and its hash. The hash covers the tempo
in force with its anchor too, so a frame whose hash agrees also has the bars of this cluster.
"""

from hashlib import sha256
from typing import Any

import msgspec

from hocket.extensions.tempo.beats.file_fields import Fields, fields_of, read_fields
from hocket.extensions.tempo.beats.messages import NAME_CHARS_MAX
from hocket.extensions.tempo.beats.phases import PHASE_NAMES, phases_of_names
from hocket.extensions.tempo.beats.tempo import BAR_LEN_DEFAULT, BPM_DEFAULT, BPM_MAX, BPM_MIN, Tempo, make_tempo
from hocket.kernel.jws import canonical_plain
from hocket.kernel.policy import BAR_LEN_MAX

HYSTERESIS_PCT_DEFAULT = 10


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


_one_of_the_phases = f"write {', '.join(PHASE_NAMES)}"


def _is_name(text: str) -> bool:
    return 0 < len(text) <= NAME_CHARS_MAX and text.isprintable()
