"""Sanitisation: what is taken out of a payload before it goes to a node that may not see all of it. Each rule is named
in the `sanitize` caveat of the reader's delegation, and rules are applied in the order in which it lists them. Who may
read what is decided by authority; wrapping the result for the wire and leaving out the signature is the sender's work.

Content is only recognised where it can be: coordinates under their usual names, in JSON or in running text. Where such
a name is found and the number behind it cannot be cut out, the whole text goes. What a picture or a foreign format
carries inside is not seen. Hashes and sizes stay those of the original, which they name.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hocket.kernel import vocabulary as v
from hocket.kernel.postcard import Malformed
from hocket.kernel.rules import SANITIZE
from hocket.kernel.vocabulary import Payload

S = TypeVar("S", bound=Struct)

# Names times characters: every name is looked for at every place, and both are the author's choice. To get ready for a
# name costs about as much as to look for it at so many places.
_SEARCH_MAX = 10_000_000
_NAME_COST = 1_000
_TRUNCATE = re.compile(r"TruncateContent\((0|[1-9][0-9]{0,9})\)")
_GEO_WORDS = frozenset({"lat", "lon", "lng", "latitude", "longitude", "altitude", "geo", "coordinates"})
# The words of a name such as gps_latitude, startLat or GPSLatitude.
_NAME_WORDS = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_GEO_TEXT = re.compile(
    rf"(?<![a-z])(?:{'|'.join(sorted(_GEO_WORDS))})\W{{0,6}}[:=][\s\"'\\\[({{+-]{{0,12}}[0-9]", re.IGNORECASE
)


class Rule(NamedTuple):
    name: str
    size: int | None = None


def parse_rule(text: str) -> Rule:
    """The rule that a caveat names. Each has one spelling, so two lists are the same rules when they are equal."""
    if found := _TRUNCATE.fullmatch(text):
        return Rule("TruncateContent", int(found[1]))
    if text in SANITIZE and text != "TruncateContent":
        return Rule(text)
    raise Malformed(f"not a sanitisation rule: {text[:64]!r}")


def sanitised(payload: Payload, rules: Sequence[str]) -> Payload:
    """The payload after these rules; the same object when they find nothing to take out. What one rule leaves may give
    an earlier one something to do, so they go on until none of them changes anything: to sanitise again is to
    change nothing."""
    if isinstance(payload, v.Sanitised):
        return _changed(payload, payload=sanitised(payload.payload, rules))
    steps = [_step(rule) for rule in map(parse_rule, rules)]
    before: Payload | None = None
    while payload is not before:
        before = payload
        for step in steps:
            payload = step(payload)
    return payload


def _step(rule: Rule) -> Callable[[Payload], Payload]:
    if rule.size is not None:
        size = rule.size
        return lambda payload: _truncated(payload, size)
    return _STEPS[rule.name]


def _changed(value: S, **fields: Any) -> S:
    """The struct with these fields, or the very same one if it has them already."""
    return value if all(_same(getattr(value, name), new) for name, new in fields.items()) else replace(value, **fields)


def _same(old: object, new: object) -> bool:
    return old is new or (isinstance(old, str | bytes) and old == new)


# StripGeo


def _without_geo(payload: Payload) -> Payload:
    if isinstance(payload, v.IngestEvidence):
        metadata = payload.metadata_snapshot
        if metadata is not None:
            metadata = _changed(metadata, location=None, custom=_custom_without_geo(metadata.custom))
        return _changed(payload, metadata_snapshot=metadata, source_anchor=_text_without_geo(payload.source_anchor))
    if isinstance(payload, v.CreateClaim):
        spatial = payload.claim_type is v.ClaimType.SPATIAL
        return _changed(payload, object=_object_without_geo(payload.object, spatial))
    if isinstance(payload, v.CreateArtifact) and payload.content_inline is not None:
        return _changed(payload, content_inline=_body_without_geo(payload.content_inline))
    return payload


def _object_without_geo(value: v.ClaimObject, spatial: bool) -> v.ClaimObject:
    """In a claim about a place, whatever is not a reference or a time may be the place."""
    if isinstance(value, v.TextObject):
        return _changed(value, text="" if spatial else _text_without_geo(value.text))
    if isinstance(value, v.StructuredObject):
        return _changed(value, data=b"" if spatial else _body_without_geo(value.data))
    if isinstance(value, v.NumberObject) and spatial:
        return value if value.number == 0 else v.NumberObject(0.0)
    return value


def _custom_without_geo(custom: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    kept = tuple((name, _text_without_geo(text)) for name, text in custom if not _is_geo(name))
    return custom if kept == custom else kept


def _body_without_geo(data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    stripped = _text_without_geo(text)
    return data if stripped is text else stripped.encode()


def _text_without_geo(text: str) -> str:
    removed = False

    def kept(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # Called for every object, also for one that a repeated name hides from whoever reads the result.
        nonlocal removed
        removed = removed or any(_is_geo(name) for name, _ in pairs)
        return {name: value for name, value in pairs if not _is_geo(name)}

    try:
        value = json.loads(text, object_pairs_hook=kept)
        stripped = json.dumps(value, ensure_ascii=False, separators=(",", ":")) if removed else text
        if len(stripped.encode()) > len(text.encode()):
            return ""
    except json.JSONDecodeError:
        stripped = text
    except (ValueError, RecursionError):
        # It is JSON, but nested too deep, with too long a number or with half a character, and cannot be rewritten.
        return ""
    return "" if _GEO_TEXT.search(stripped) else stripped


def _is_geo(name: str) -> bool:
    return any(word.lower() in _GEO_WORDS for word in _NAME_WORDS.findall(name))


# RedactParticipants


def _without_participants(payload: Payload) -> Payload:
    if not isinstance(payload, v.IngestEvidence) or payload.metadata_snapshot is None:
        return payload
    metadata = payload.metadata_snapshot
    names = {name: f"participant-{n}" for n, name in enumerate(dict.fromkeys(metadata.participants), 1)}
    if all(name == placeholder for name, placeholder in names.items()):
        return payload
    redacted = replace(metadata, participants=tuple(names[name] for name in metadata.participants))
    texts = (payload.source_anchor, *(text for pair in metadata.custom for text in pair))
    if len(names) * (_NAME_COST + sum(map(len, texts))) > _SEARCH_MAX:
        # The names cannot be cut out in reasonable time, so the texts go.
        return replace(payload, source_anchor="", metadata_snapshot=replace(redacted, custom=()))
    # The longest first, so that a name is not taken for a shorter one that it begins with.
    anywhere = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True) if name) or r"\Z.")

    def without_names(text: str) -> str:
        return anywhere.sub(lambda found: names[found[0]], text)

    custom = tuple((without_names(name), without_names(text)) for name, text in metadata.custom)
    return replace(
        payload,
        source_anchor=without_names(payload.source_anchor),
        metadata_snapshot=replace(redacted, custom=custom),
    )


# TruncateContent

# The fields whose length is the author's choice; ids, names and kinds are not among them.
_BODIES: dict[type[Payload], tuple[str, ...]] = {
    v.ScheduleJob: ("payload",),
    v.SetSchedule: ("payload",),
    v.ReportProgress: ("note",),
    v.FailWork: ("error", "traceback"),
    v.CreateArtifact: ("content_inline",),
    v.CreateEpisode: ("summary",),
    v.UpdateEpisode: ("summary",),
    v.CreateSuggestedAction: ("description",),
    v.UpdateActionStatus: ("execution_result",),
}


def _truncated(payload: Payload, size: int) -> Payload:
    if isinstance(payload, v.CreateClaim):
        value = payload.object
        if isinstance(value, v.TextObject):
            return _changed(payload, object=_changed(value, text=_cut(value.text, size)))
        if isinstance(value, v.StructuredObject):
            return _changed(payload, object=_changed(value, data=_cut(value.data, size)))
        return payload
    bodies = {name: _cut(getattr(payload, name), size) for name in _BODIES.get(type(payload), ())}
    return _changed(payload, **bodies)


def _cut(body: Any, size: int) -> Any:
    """At most so many bytes of a text or of bytes; of text, and of bytes that are text, only whole characters."""
    data = body.encode() if isinstance(body, str) else body
    if data is None or len(data) <= size:
        return body
    try:
        data.decode()
    except UnicodeDecodeError:
        return data[:size]
    whole = data[:size].decode("utf-8", "ignore")
    return whole if isinstance(body, str) else whole.encode()


# StripCustomMetadata


def _without_custom(payload: Payload) -> Payload:
    if isinstance(payload, v.IngestEvidence) and payload.metadata_snapshot is not None:
        metadata = payload.metadata_snapshot
        if metadata.custom:
            return replace(payload, metadata_snapshot=replace(metadata, custom=()))
    return payload


_STEPS: dict[str, Callable[[Payload], Payload]] = {
    "StripGeo": _without_geo,
    "RedactParticipants": _without_participants,
    "StripCustomMetadata": _without_custom,
}
