"""Sanitisation: what is removed from a payload before it goes to a node that may not see all of it. The `sanitize`
caveat of the reader's delegation names the rules, which are applied in its order. `authority` decides who may read
what; the sender wraps the result for the wire and leaves out the signature.

The rules cover every field whose content is the author's choice: texts, and bodies, which are bytes. Ids, names, kinds
and types are not among them. What a rule cannot parse is removed whole: a body that is not UTF-8, and a job's payload
or policy that is not JSON. A JSON body loses the members that a rule is about; a text that contains such content which
cannot be cut out is removed whole, too. Hashes and sizes stay those of the original.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hocket.kernel import vocabulary as v
from hocket.kernel.jws import NESTING_MAX, is_too_deep
from hocket.kernel.mesh_rules import SANITIZE
from hocket.kernel.policy import Policy
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import Payload, by_payload

S = TypeVar("S", bound=Struct)

# Names times characters: every name is searched at every position, and the author chooses both. Preparing for a name
# costs about as much as searching it at this many positions.
_SEARCH_MAX = 10_000_000
_NAME_COST = 1_000
_TRUNCATE = re.compile(r"TruncateContent\((0|[1-9][0-9]{0,9})\)")

# The fields whose content is the author's choice. Evidence and claims are handled separately below.
_TEXTS = by_payload(lambda each: each.texts or None)
_BODIES = by_payload(lambda each: each.bodies or None)
_JSON = by_payload(lambda each: each.json or None)
# A name is not content, and a policy is bounded anyway.
_NOT_CUT = frozenset({"initial_label", "alias", "semantic_lane", "title", "policy_envelope"})


class Rule(NamedTuple):
    name: str
    size: int | None = None


def parse_rule(text: str) -> Rule:
    """The rule that a caveat names. Each has one spelling, so two lists are the same rules if they are equal."""
    if found := _TRUNCATE.fullmatch(text):
        return Rule("TruncateContent", int(found[1]))
    if text in SANITIZE and text != "TruncateContent":
        return Rule(text)
    raise Malformed(f"not a sanitisation rule: {text[:64]!r}")


def sanitised(payload: Payload, rules: Sequence[str]) -> Payload:
    """The payload after these rules; the same object if they find nothing to remove. The result of one rule may give an
    earlier one something to do, so they are repeated until none changes anything: sanitising again changes nothing.
    """
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


def _changed(value: S, /, **fields: Any) -> S:
    """The struct with these fields, or the very same one if it already has them."""
    return value if all(_same(getattr(value, name), new) for name, new in fields.items()) else replace(value, **fields)


def _same(old: object, new: object) -> bool:
    return old is new or (isinstance(old, str | bytes) and old == new)


def _mapped(payload: Payload, text: Callable[[str], str], body: Callable[[bytes, bool], bytes]) -> Payload:
    """The payload with each text and body as these functions leave it. The flag means that a body must be JSON."""
    if isinstance(payload, v.IngestEvidence):
        metadata = payload.metadata_snapshot
        if metadata is not None:
            custom = tuple((text(name), text(value)) for name, value in metadata.custom)
            metadata = _changed(metadata, custom=metadata.custom if custom == metadata.custom else custom)
        return _changed(payload, source_anchor=text(payload.source_anchor), metadata_snapshot=metadata)
    if isinstance(payload, v.CreateClaim):
        value = payload.object
        if isinstance(value, v.TextObject):
            value = _changed(value, text=text(value.text))
        elif isinstance(value, v.StructuredObject):
            value = _changed(value, data=body(value.data, False))
        return _changed(payload, object=value)
    fields: dict[str, Any] = {}
    if isinstance(payload, v.UserAssert) and isinstance(payload.target, v.LaneTarget):
        fields["target"] = _changed(payload.target, lane=text(payload.target.lane))
    for name, content in _contents(payload, _TEXTS):
        fields[name] = text(content)
    for table, must_be_json in ((_BODIES, False), (_JSON, True)):
        for name, content in _contents(payload, table):
            fields[name] = body(content, must_be_json)
    return _changed(payload, **fields)


def _contents(payload: Payload, table: dict[type[Payload], tuple[str, ...]]) -> Iterator[tuple[str, Any]]:
    for name in table.get(type(payload), ()):
        content = getattr(payload, name)
        if content:
            yield name, content


# StripGeo


def _without_geo(payload: Payload) -> Payload:
    if isinstance(payload, v.IngestEvidence) and payload.metadata_snapshot is not None:
        metadata = payload.metadata_snapshot
        kept = tuple(pair for pair in metadata.custom if not names_place(pair[0]))
        custom = metadata.custom if kept == metadata.custom else kept
        payload = _changed(payload, metadata_snapshot=_changed(metadata, location=None, custom=custom))
    elif isinstance(payload, v.CreateClaim) and payload.claim_type is v.ClaimType.SPATIAL:
        return _changed(payload, object=_without_place(payload.object))
    return _mapped(payload, _text_without_geo, _body_without_geo)


def _without_place(value: v.ClaimObject) -> v.ClaimObject:
    """In a claim about a place, everything except a reference or a time may be the place."""
    if isinstance(value, v.TextObject):
        return _changed(value, text="")
    if isinstance(value, v.StructuredObject):
        return _changed(value, data=b"")
    if isinstance(value, v.NumberObject):
        return value if value.number == 0 else v.NumberObject(0.0)
    return value


def _body_without_geo(data: bytes, must_be_json: bool) -> bytes:
    try:
        text = data.decode()
        stripped = _json_without_geo(text) if must_be_json else _text_without_geo(text)
    except ValueError:
        return b""
    return data if stripped is text else stripped.encode()


def _text_without_geo(text: str) -> str:
    try:
        return _json_without_geo(text)
    except json.JSONDecodeError:
        return "" if tells_place(text) else text


def _json_without_geo(text: str) -> str:
    """Raises JSONDecodeError if it is not JSON."""
    removed = False

    def kept(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # Called for every object, even for one that a repeated name hides from readers of the result.
        nonlocal removed
        removed = removed or any(names_place(name) for name, _ in pairs)
        return {name: value for name, value in pairs if not names_place(name)}

    try:
        value = _parsed(text, kept)
        # Letters may be escaped, so the search runs over the decoded value, not the text.
        plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if removed and len(plain.encode()) > len(text.encode()):
            return ""
    except json.JSONDecodeError:
        raise
    except ValueError:
        # It is JSON, but nested too deep, with too long a number or with half a character, and cannot be rewritten.
        return ""
    stripped = plain if removed else text
    return "" if tells_place(plain) or tells_place(stripped) else stripped


# RedactParticipants

_PARTICIPANT_WORDS = frozenset(
    {
        *("participant", "participants", "attendee", "attendees", "invitee", "invitees", "organizer", "organiser"),
        *("sender", "senders", "recipient", "recipients", "cc", "bcc", "contact", "contacts", "person", "people"),
        *("email", "emails", "mail", "phone", "phones", "who", "whom"),
    }
)
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")


def _without_participants(payload: Payload) -> Payload:
    found = _Participants(payload)
    names = found.names
    if found.are_placeholders():
        redacted = _mapped(payload, lambda text: text, found.understood)
    elif len(names) * (_NAME_COST + found.size) > _SEARCH_MAX:
        # The names cannot be cut out in reasonable time, so the texts are removed.
        redacted = _without_custom(_mapped(payload, lambda text: "", lambda data, _: b""))
    else:
        redacted = _mapped(payload, found.redacted_text, found.redacted_body)
    if isinstance(redacted, v.IngestEvidence) and redacted.metadata_snapshot is not None:
        metadata = redacted.metadata_snapshot
        renamed = tuple(names[name] for name in metadata.participants)
        participants = metadata.participants if renamed == metadata.participants else renamed
        return _changed(redacted, metadata_snapshot=_changed(metadata, participants=participants))
    return redacted


class _Participants:
    """The people named in a payload, and the placeholder of each: the participants of evidence, values in JSON under a
    name for people, and e-mail addresses anywhere. In redacted content, each placeholder stands for itself.
    """

    def __init__(self, payload: Payload) -> None:
        self.size = 0
        self.names: dict[str, str] = {}
        self._searched: set[str] = set()
        self._emails: list[str] = []
        if isinstance(payload, v.IngestEvidence) and payload.metadata_snapshot is not None:
            for name in payload.metadata_snapshot.participants:
                self._add(name)
        _mapped(payload, self._look, self._look_into)
        for email in self._emails:
            self._add(email)
        # The longest first, so that a name is not taken for a shorter one that it begins with.
        searched = sorted(self._searched - {""}, key=len, reverse=True)
        self._anywhere = "|".join(map(re.escape, searched)) or r"\Z."

    def _add(self, name: str, searched: bool = True) -> None:
        self.names.setdefault(name, f"participant-{len(self.names) + 1}")
        if searched:
            self._searched.add(name)

    def _look(self, text: str) -> str:
        self.size += len(text)
        try:
            plain = json.dumps(_loads(text, self._look_at)[0], ensure_ascii=False)
        except ValueError:
            plain = text
        self._emails += _EMAIL.findall(plain)
        return text

    def _look_into(self, data: bytes, _: bool) -> bytes:
        self._look(data.decode("utf-8", "replace"))
        return data

    def _look_at(self, pairs: list[tuple[str, Any]]) -> None:
        for name, value in pairs:
            if _names_people(name):
                for leaf in _leaves(value):
                    # A number is replaced where it stands, and not searched elsewhere.
                    self._add(str(leaf), isinstance(leaf, str))

    def are_placeholders(self) -> bool:
        return all(name == placeholder for name, placeholder in self.names.items())

    def redacted_text(self, text: str) -> str:
        return re.sub(self._anywhere, lambda found: self.names[found[0]], text)

    def understood(self, data: bytes, must_be_json: bool) -> bytes:
        """The body, if it could be searched."""
        return self._rewritten(data, must_be_json, lambda text: text, lambda value: value)

    def redacted_body(self, data: bytes, must_be_json: bool) -> bytes:
        return self._rewritten(data, must_be_json, self.redacted_text, lambda value: self._redacted(value, False))

    def _rewritten(
        self, data: bytes, must_be_json: bool, text: Callable[[str], str], value: Callable[[Any], Any]
    ) -> bytes:
        try:
            plain = data.decode()
            try:
                before, is_repeated = _loads(plain)
            except json.JSONDecodeError:
                return b"" if must_be_json else text(plain).encode()
            after = value(before)
            # A value that a repeated name hides is not in the result; it disappears when the JSON is rewritten.
            if after == before and not is_repeated:
                return data
            return json.dumps(after, ensure_ascii=False, separators=(",", ":")).encode()
        except ValueError:
            return b""

    def _redacted(self, value: Any, is_person: bool) -> Any:
        if isinstance(value, dict):
            return {
                self.redacted_text(name): self._redacted(each, is_person or _names_people(name))
                for name, each in value.items()
            }
        if isinstance(value, list):
            return [self._redacted(each, is_person) for each in value]
        if isinstance(value, str):
            return self._placeholder(value) if is_person else self.redacted_text(value)
        if is_person and isinstance(value, int | float) and not isinstance(value, bool):
            return self._placeholder(str(value))
        return value

    def _placeholder(self, name: str) -> str:
        if name not in self.names:
            raise ValueError("a name was overlooked, because the JSON around it is nested too deep")
        return self.names[name]


def _names_people(name: str) -> bool:
    return any(word.lower() in _PARTICIPANT_WORDS for word in _NAME_WORDS.findall(name))


def _leaves(value: Any) -> Iterator[str | int | float]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _loads(text: str, look_at: Callable[[list[tuple[str, Any]]], None] = lambda pairs: None) -> tuple[Any, bool]:
    """The value of a JSON text, and whether a name in it is repeated. `look_at` gets every object, even one that a
    repeated name hides.
    """
    is_repeated = False

    def kept(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal is_repeated
        look_at(pairs)
        kept = dict(pairs)
        is_repeated = is_repeated or len(kept) < len(pairs)
        return kept

    return _parsed(text, kept), is_repeated


def _parsed(text: str, hook: Callable[[list[tuple[str, Any]]], dict[str, Any]]) -> Any:
    if is_too_deep(text.encode(errors="replace")):
        raise ValueError(f"nested deeper than {NESTING_MAX}")
    return json.loads(text, object_pairs_hook=hook)


# TruncateContent


def _truncated(payload: Payload, size: int) -> Payload:
    if isinstance(payload, v.IngestEvidence):
        metadata = payload.metadata_snapshot
        if metadata is None:
            return payload
        custom = tuple((name, _cut(text, size)) for name, text in metadata.custom)
        metadata = _changed(metadata, custom=metadata.custom if custom == metadata.custom else custom)
        return _changed(payload, metadata_snapshot=metadata)
    if isinstance(payload, v.CreateClaim):
        value = payload.object
        if isinstance(value, v.TextObject):
            return _changed(payload, object=_changed(value, text=_cut(value.text, size)))
        if isinstance(value, v.StructuredObject):
            return _changed(payload, object=_changed(value, data=_cut(value.data, size)))
        return payload
    contents = [each for table in (_TEXTS, _BODIES, _JSON) for each in _contents(payload, table)]
    return _changed(payload, **{name: _cut(content, size) for name, content in contents if name not in _NOT_CUT})


def _cut(body: Any, size: int) -> Any:
    """At most this many bytes of a text or of bytes; of text, and of bytes that are text, only whole characters."""
    data = body.encode() if isinstance(body, str) else body
    if len(data) <= size:
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
        return _changed(payload, metadata_snapshot=_changed(payload.metadata_snapshot, custom=()))
    if "policy_envelope" in _JSON.get(type(payload), ()):
        envelope: bytes = payload.policy_envelope  # type: ignore[union-attr]
        return _changed(payload, policy_envelope=_known_policy(envelope))
    return payload


def _known_policy(envelope: bytes) -> bytes:
    """The part of an envelope that we know; another writer's may carry anything."""
    try:
        policy, is_repeated = _loads(envelope.decode()) if envelope else ({}, False)
        if not isinstance(policy, dict):
            return b""
        known = {name: value for name, value in policy.items() if name in Policy.__struct_fields__}
        if known == policy and not is_repeated:
            return envelope
        return json.dumps(known, ensure_ascii=False, separators=(",", ":")).encode()
    except ValueError:
        return b""


_STEPS: dict[str, Callable[[Payload], Payload]] = {
    "StripGeo": _without_geo,
    "RedactParticipants": _without_participants,
    "StripCustomMetadata": _without_custom,
}


# Places

# They are recognised by the usual names of coordinates, and by how they look in running text. That follows common
# habits and is never complete: it does not see a geohash in a text, nor the name of a city. In doubt a text counts as
# one that reveals a place, because a reader under StripGeo should get too little rather than too much.

_WORDS = frozenset(
    {
        *(
            "lat",
            "lon",
            "lng",
            "latitude",
            "latitudes",
            "longitude",
            "longitudes",
            "altitude",
            "altitudes",
            "elevation",
        ),
        *("latlng", "latlon", "latlong", "lnglat", "lonlat", "longlat", "geo", "gps", "coord", "coords"),
        *("coordinate", "coordinates", "position", "positions", "location", "locations", "waypoint", "waypoints"),
        *("geolocation", "geopoint", "geohash", "geojson", "geofence"),
    }
)
# Too common as parts of other names.
_WHOLE_NAMES = frozenset({"long", "alt", "loc", "pos"})
_BEGINNINGS = ("gps", "latlng", "latlon", "geoloc", "geopoint", "geohash", "geojson", "latitude", "longitude")
_ENDINGS = ("latitude", "longitude", "altitude", "coordinates", "coords", "geolocation", "latlng", "latlon", "gps")
# The words of a name such as gps_latitude, startLat or GPSLatitude.
_NAME_WORDS = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_WORD = "|".join(sorted(_WORDS, key=len, reverse=True))
_DEGREES = r"[+-]?[0-9]{1,3}\.[0-9]"
# Every repetition is bounded or stands behind a mark that cannot begin inside it, so that a search takes linear time.
_TEXT = re.compile(
    "|".join(
        (
            # lat: 48, "gps_latitude": "48, geo:48, coordinates = [48
            rf"(?<![a-z])(?:{_WORD})(?:[_-]\w{{1,16}})?\W{{0,6}}[:=][\s\"'\\\[({{+-]{{0,12}}[0-9]",
            # latitude 48.2
            rf"(?<![a-z])(?:lat|lon|lng|latitude|longitude|altitude)\.?\s{{1,3}}(?:is\s)?{_DEGREES}",
            # 48.208, 16.373: two numbers with at least three decimals side by side
            rf"(?<![0-9.]){_DEGREES}[0-9]{{2,17}}(?![0-9])°?\s{{0,3}}[,;/\s]\s{{0,3}}{_DEGREES}[0-9]{{2}}",
            # https://maps.example/@48.2,16.4
            rf"@{_DEGREES}[0-9]{{0,17}},{_DEGREES}",
            # 48°12'N, 48.2° N, 48.2N 16.4E
            r"[0-9]\s?°\s?(?:[0-9]|[NSEW]\b)",
            rf"{_DEGREES}[0-9]{{0,17}}\s?[NS]\b\W{{0,4}}{_DEGREES}[0-9]{{0,17}}\s?[EW]\b",
            # POINT (16.4 48.2), $GPGGA
            r"\b(?:POINT|LINESTRING|POLYGON)\s?Z?M?\s?\(\s?\(?\s?[+-]?[0-9]",
            r"\$G[PNLA](?:GGA|RMC|GLL)",
        )
    ),
    re.IGNORECASE,
)


def names_place(name: str) -> bool:
    """Whether a field of this name reveals a place."""
    plain = "".join(filter(str.isalpha, name)).lower()
    if plain in _WHOLE_NAMES or plain.startswith(_BEGINNINGS) or plain.endswith(_ENDINGS):
        return True
    return any(word.lower() in _WORDS for word in _NAME_WORDS.findall(name))


def tells_place(text: str) -> bool:
    """Whether a text contains coordinates."""
    return _TEXT.search(text) is not None
