"""Sanitisation: what each rule takes out, and that doing it again changes nothing."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel import vocabulary as v
from hocket.kernel.postcard import Malformed, encode
from hocket.kernel.sanitise import Rule, parse_rule, sanitised
from tests.kernel.naive_authority import ID, payloads

pytestmark = pytest.mark.touches("LW-29")

METADATA = v.Metadata(
    timestamp_ms=5,
    location=v.Location(48.2, 16.4, 170.0),
    participants=("ann@example.org", "bob", "ann@example.org"),
    custom=(("camera", "x100"), ("gps_latitude", "48.2"), ("note", '{"lng":16.4,"who":"bob"}')),
)
EVIDENCE = v.IngestEvidence(ID, bytes(32), "photo", "file:bob/1.jpg", METADATA)


def claim(value: v.ClaimObject, kind: v.ClaimType = v.ClaimType.ATTRIBUTE) -> v.CreateClaim:
    return v.CreateClaim(ID, kind, ID, "p", value, v.ClaimStatus.HINT, (), v.Provenance())


def artifact(content: bytes | None) -> v.CreateArtifact:
    return v.CreateArtifact(ID, "t", None, (), b"h" * 32, content, None, None, 99)


def test_rules_have_one_spelling() -> None:
    assert parse_rule("StripGeo") == Rule("StripGeo")
    assert parse_rule("TruncateContent(0)") == Rule("TruncateContent", 0)
    assert parse_rule("TruncateContent(4096)") == Rule("TruncateContent", 4096)
    for text in (
        *("", "stripgeo", "StripGeo ", "StripGeo()", "Blur", "TruncateContent", "TruncateContent()"),
        *("TruncateContent(-1)", "TruncateContent(01)", "TruncateContent(1.5)", "TruncateContent(x)"),
        *("TruncateContent(1)\n", "TruncateContent( 1)", "TruncateContent(١)", f"TruncateContent({'9' * 5000})"),
    ):
        with pytest.raises(Malformed):
            parse_rule(text)
        with pytest.raises(Malformed):
            sanitised(EVIDENCE, [text])


@pytest.mark.req("LW-29")
def test_evidence_loses_its_place() -> None:
    got = sanitised(EVIDENCE, ["StripGeo"])
    assert isinstance(got, v.IngestEvidence) and got.metadata_snapshot is not None
    assert got.metadata_snapshot == v.Metadata(
        timestamp_ms=5,
        location=None,
        participants=METADATA.participants,
        custom=(("camera", "x100"), ("note", '{"who":"bob"}')),
    )
    assert got.source_anchor == EVIDENCE.source_anchor
    anchored = v.IngestEvidence(ID, bytes(32), "photo", "geo:48.2,16.4")
    assert sanitised(anchored, ["StripGeo"]) == v.IngestEvidence(ID, bytes(32), "photo", "")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"lat":1,"lon":2,"a":3}', '{"a":3}'),
        ('{"lng":1,"latitude":1,"longitude":1,"altitude":1,"geo":{},"coordinates":[1,2]}', "{}"),
        ('{"LAT":1,"Latitude":2,"gpsLatitude":3,"GPSLongitude":4,"start_lat":5,"latex":6}', '{"latex":6}'),
        ('[{"a":[{"lat":1}]},7]', '[{"a":[{}]},7]'),
        ('{"a":{"lat":1},"a":{}}', '{"a":{}}'),
        ('{"a":1,"a":2}', '{"a":1,"a":2}'),
        ('{"a":"lat: 1"}', ""),
        (r'{"a":"{\"lat\": 1}"}', ""),
        ('{"my lat":1}', "{}"),
        ('{"lat":1}\n{"lat":2}', ""),
        ('{"who":"ann","lat": 48', ""),
        ('{"lat":null} and more', '{"lat":null} and more'),
        ("lat=48.2, lon=16.4", ""),
        ("Latitude: +48", ""),
        ("coordinates: [16.4, 48.2]", ""),
        ("flat: 5, plateau: 7, the lat is warm", "flat: 5, plateau: 7, the lat is warm"),
        ('{"a": 1, "b": "ä"}', '{"a": 1, "b": "ä"}'),
        ('{"lat":1,"b":"ä"}', '{"b":"ä"}'),
        ('{"lat":1,"b":"\\ud800"}', ""),
        ('{"lat":1,"b":' + "9" * 5000 + "}", ""),
        ('{"lat":1,"b":' + "[" * 5000 + "]" * 5000 + "}", ""),
        ('{"lat":1,"b":[' + "1e9," * 20 + "1]}", ""),
        ("", ""),
        ("true", "true"),
    ],
)
def test_coordinates_go_from_structured_claims_texts_and_artifacts(text: str, left: str) -> None:
    data, rest = text.encode(), left.encode()
    assert sanitised(claim(v.StructuredObject(data)), ["StripGeo"]) == claim(v.StructuredObject(rest))
    assert sanitised(claim(v.TextObject(text)), ["StripGeo"]) == claim(v.TextObject(left))
    assert sanitised(artifact(data), ["StripGeo"]) == artifact(rest)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "latlng",
            "latLng",
            "LatLng",
            "lat_lng",
            "gps",
            "GPS",
            "gpsposition",
            "position",
            "startPosition",
            "location",
        ),
        *("homelatitude", "user-location", "coords", "geolocation", "long", "alt", "loc", "pos", "l\\u0061t", "lat1"),
        *("waypoints", "geo_hash", "elevation"),
    ],
)
def test_a_place_goes_by_any_of_its_usual_names(name: str) -> None:
    text = f'{{"{name}":"Vienna","a":1}}'
    assert sanitised(artifact(text.encode()), ["StripGeo"]) == artifact(b'{"a":1}')
    assert sanitised(schedule(text.encode()), ["StripGeo"]) == schedule(b'{"a":1}')


@pytest.mark.parametrize(
    "name", ["latex", "flat", "allocation", "along", "alternative", "poster", "composition", "local"]
)
def test_other_names_stay(name: str) -> None:
    payload = schedule(f'{{"{name}":"Vienna"}}'.encode())
    assert sanitised(payload, ["StripGeo"]) is payload


@pytest.mark.parametrize(
    "text",
    [
        *("at 48.20817, 16.37382", "48.208 16.373", "[48.208,16.373]", "-33.8567;151.2152", "geo:48.2,16.4"),
        *("https://maps.example/@48.2,16.4,15z", "48°12'N 16°22'E", "48.2° N", "48.2N, 16.4E", "POINT(16.4 48.2)"),
        *("$GPGGA,123519,4807.038,N,01131.000,E", "latitude 48.2", "gps_latitude: 48", '{"a":"l\\u0061t: 48"}'),
        *("position=48", "location: 48.2, 16.4"),
    ],
)
def test_a_place_is_seen_in_running_text(text: str) -> None:
    assert sanitised(v.CancelJob(ID, text), ["StripGeo"]) == v.CancelJob(ID, "")
    assert sanitised(artifact(text.encode()), ["StripGeo"]) == artifact(b"")


@pytest.mark.parametrize(
    "text", ["20 °C, 3.5 bar", "version 1.2.345, 6", "took 1.25 s, 2.5 s", "a point (see 3)", "x@y"]
)
def test_other_numbers_stay(text: str) -> None:
    payload = v.CancelJob(ID, text)
    assert sanitised(payload, ["StripGeo"]) is payload


@pytest.mark.parametrize("rule", ["StripGeo", "RedactParticipants"])
def test_what_cannot_be_understood_goes(rule: str) -> None:
    """A picture may carry where it was taken, and a payload in another format anything."""
    assert sanitised(artifact(b"\xff\xd8 Exif \xfe"), [rule]) == artifact(b"")
    assert sanitised(v.ReportProgress(ID, 1, b"\xff"), [rule]) == v.ReportProgress(ID, 1, b"")
    assert sanitised(v.SaveCheckpoint(ID, 1, b"\xff"), [rule]) == v.SaveCheckpoint(ID, 1, b"")
    assert sanitised(schedule(b"\x82\xa3lat\x30"), [rule]) == schedule(b"")
    assert sanitised(schedule(b"plain words"), [rule]) == schedule(b"")
    plain = artifact(b"plain words")
    assert sanitised(plain, [rule]) is plain


def schedule(payload: bytes) -> v.ScheduleJob:
    return v.ScheduleJob(ID, "kind", payload, b"")


PLACE, PERSON = "lat=48.2081", "ann@example.org"
# Ids, names, kinds and types, which say what an op is about; and numbers, times and tokens.
NOT_CONTENT = {
    *("kind", "name", "cron", "timezone", "source_type", "entity_type", "predicate", "artifact_type", "action_type"),
    *("model_id", "model_version", "claim_type", "new_status", "initial_status", "status", "ucan_bytes"),
    # Only those who may read every op may read the proof of a fork, and a signature is no content.
    *("public", "left", "right", "signature"),
    # What an acceptance is about. It would be about something else without.
    *("family", "key"),
    # Names of locks, rows, agents and message types, and the op that something is about.
    # Which kinds a rule is about, and the op of a horizon.
    *("match", "before", "root"),
    *("scope", "agent", "to", "sender", "message_type", "row", "waiting", "thread", "reply_to", "base", "conflict"),
}


def filled(cls: type[v.Payload], text: str) -> v.Payload | None:
    """The payload with this text in every field that holds one; None when it has no such field."""
    (example,) = [each for each in payloads("a") if type(each) is cls]
    fields = {}
    for field in msgspec.structs.fields(cls):
        if field.name not in NOT_CONTENT and field.name not in IDS:
            body = json.dumps({"note": text}).encode()
            value = {str: text, str | None: text, bytes: body, bytes | None: body}.get(field.type)
            if value is not None:
                fields[field.name] = value
    return msgspec.structs.replace(example, **fields) if fields else None


IDS = {
    field.name
    for codec in v.VARIANTS.values()
    for field in msgspec.structs.fields(codec.cls)
    if field.name.endswith(("_id", "_job", "_cid", "_hash", "_episode"))
} | {"subject", "survivor", "original", "offer", "follows", "succession"}


@pytest.mark.parametrize("cls", [each.cls for each in v.VARIANTS.values() if each.cls not in (v.Sanitised, v.Bundle)])
@pytest.mark.parametrize(("rule", "text"), [("StripGeo", PLACE), ("RedactParticipants", PERSON)])
def test_every_field_that_can_carry_content_is_covered(cls: type[v.Payload], rule: str, text: str) -> None:
    """A payload or field that is added later must be decided about."""
    payload = filled(cls, text)
    if payload is None:
        return
    assert text.encode() in encode(v.PAYLOAD, payload)
    assert text.encode() not in encode(v.PAYLOAD, sanitised(payload, [rule]))


@pytest.mark.parametrize("cls", [each.cls for each in v.VARIANTS.values() if each.cls not in (v.Sanitised, v.Bundle)])
def test_every_content_is_cut(cls: type[v.Payload]) -> None:
    payload = filled(cls, "x" * 5_000)
    if payload is not None:
        kept = {"source_anchor", "initial_label", "alias", "semantic_lane", "title", "policy_envelope"}
        for name, value in msgspec.structs.asdict(sanitised(payload, ["TruncateContent(9)"])).items():
            assert name in kept or not isinstance(value, str | bytes) or len(value) <= 32, name


def test_the_lane_that_an_assertion_is_about_is_covered() -> None:
    def about(lane: str) -> v.UserAssert:
        return v.UserAssert(v.AssertionType.LANE_RULE, v.LaneTarget(lane))

    assert sanitised(about(PLACE), ["StripGeo"]) == about("")
    assert sanitised(about(PERSON), ["RedactParticipants"]) == about("participant-1")
    plain = about("calendar")
    assert sanitised(plain, ["StripGeo", "RedactParticipants"]) is plain


def test_people_in_a_job_get_placeholders() -> None:
    text = b'{"attendees":[{"name":"Ann","no":17},"bob"],"text":"bob met Ann, bob@example.org","n":17}'
    got = sanitised(schedule(text), ["RedactParticipants"])
    assert isinstance(got, v.ScheduleJob)
    assert json.loads(got.payload) == {
        "attendees": [{"name": "participant-1", "no": "participant-2"}, "participant-3"],
        "text": "participant-3 met participant-1, participant-4",
        "n": 17,
    }
    hidden = b'{"who":"bob","who":"x"}'
    left = sanitised(schedule(hidden), ["RedactParticipants"])
    assert left == schedule(b'{"who":"participant-1"}')
    assert sanitised(v.FailWork(ID, 1, f"no answer from {PERSON}", "", True), ["RedactParticipants"]) == v.FailWork(
        ID, 1, "no answer from participant-1", "", True
    )


def test_what_is_not_ours_in_a_policy_goes_with_custom_metadata() -> None:
    def job(policy: bytes) -> v.ScheduleJob:
        return v.ScheduleJob(ID, "kind", b"{}", policy)

    assert sanitised(job(b'{"priority":3,"owner":"ann"}'), ["StripCustomMetadata"]) == job(b'{"priority":3}')
    assert sanitised(job(b"whatever"), ["StripCustomMetadata"]) == job(b"")
    for policy in (b"", b'{"priority":3}', b'{"open": true}'):
        payload = job(policy)
        assert sanitised(payload, ["StripCustomMetadata"]) is payload


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (v.TextObject("Vienna"), v.TextObject("")),
        (v.NumberObject(48.2), v.NumberObject(0.0)),
        (v.NumberObject(float("nan")), v.NumberObject(0.0)),
        (v.StructuredObject(b"\x01"), v.StructuredObject(b"")),
        (v.EntityObject(ID), v.EntityObject(ID)),
        (v.BooleanObject(True), v.BooleanObject(True)),
        (v.TimestampObject(7), v.TimestampObject(7)),
    ],
)
def test_a_claim_about_a_place_says_nothing_of_it(value: v.ClaimObject, left: v.ClaimObject) -> None:
    assert sanitised(claim(value, v.ClaimType.SPATIAL), ["StripGeo"]) == claim(left, v.ClaimType.SPATIAL)
    assert sanitised(claim(value), ["StripGeo"]) == claim(value) or value == v.NumberObject(float("nan"))


@pytest.mark.req("LW-29")
def test_participants_get_one_placeholder_each_wherever_they_are_named() -> None:
    got = sanitised(EVIDENCE, ["RedactParticipants"])
    assert isinstance(got, v.IngestEvidence) and got.metadata_snapshot is not None
    assert got.metadata_snapshot.participants == ("participant-1", "participant-2", "participant-1")
    assert got.source_anchor == "file:participant-2/1.jpg"
    assert got.metadata_snapshot.custom[2] == ("note", '{"lng":16.4,"who":"participant-2"}')
    assert got.metadata_snapshot.location == METADATA.location


def test_a_placeholder_is_not_taken_for_a_name() -> None:
    metadata = v.Metadata(participants=("participant-2", "part", "participant-1", "participant-11", ""))
    got = sanitised(
        v.IngestEvidence(ID, bytes(32), "s", "part participant-11 participant-1", metadata), ["RedactParticipants"]
    )
    assert isinstance(got, v.IngestEvidence) and got.metadata_snapshot is not None
    assert got.metadata_snapshot.participants == tuple(f"participant-{n}" for n in range(1, 6))
    assert got.source_anchor == "participant-2 participant-4 participant-3"


@pytest.mark.req("LW-29")
@pytest.mark.parametrize(
    ("body", "size", "left"),
    [
        (b"abcdef", 4, b"abcd"),
        (b"abcdef", 6, b"abcdef"),
        (b"abcdef", 0, b""),
        ("aä€".encode(), 5, "aä".encode()),
        ("aä€".encode(), 2, b"a"),
        ("aä€".encode(), 3, "aä".encode()),
        (b"\xff\xc3\xa4", 2, b"\xff\xc3"),
    ],
)
def test_bodies_are_cut(body: bytes, size: int, left: bytes) -> None:
    rules = [f"TruncateContent({size})"]
    assert sanitised(artifact(body), rules) == artifact(left)
    assert sanitised(claim(v.StructuredObject(body)), rules) == claim(v.StructuredObject(left))
    assert sanitised(v.ScheduleJob(ID, "kind", body, b"{}"), rules) == v.ScheduleJob(ID, "kind", left, b"{}")
    assert sanitised(v.ReportProgress(ID, 1, body), rules) == v.ReportProgress(ID, 1, left)
    schedule = v.SetSchedule("nightly", "@daily", "UTC", "kind", body, b"{}")
    assert sanitised(schedule, rules) == msgspec.structs.replace(schedule, payload=left)
    if body[0] != 0xFF:
        text, rest = body.decode(), left.decode()
        assert sanitised(claim(v.TextObject(text)), rules) == claim(v.TextObject(rest))
        assert sanitised(v.FailWork(ID, 1, text, text, True), rules) == v.FailWork(ID, 1, rest, rest, True)
        assert sanitised(v.UpdateEpisode(ID, summary=text), rules) == v.UpdateEpisode(ID, summary=rest)
        episode = v.CreateEpisode(ID, "a title", text, 0, None, (), (), (), 0.5)
        assert sanitised(episode, rules) == msgspec.structs.replace(episode, summary=rest)
        action = v.CreateSuggestedAction(ID, "a title", text, "type", ID, (), (), None, 0.5)
        assert sanitised(action, rules) == msgspec.structs.replace(action, description=rest)
        assert sanitised(v.UpdateActionStatus(ID, v.ActionStatus.FAILED, text), rules) == v.UpdateActionStatus(
            ID, v.ActionStatus.FAILED, rest
        )


@pytest.mark.req("LW-29")
def test_custom_metadata_goes() -> None:
    got = sanitised(EVIDENCE, ["StripCustomMetadata"])
    assert isinstance(got, v.IngestEvidence) and got.metadata_snapshot is not None
    assert got.metadata_snapshot.custom == ()
    assert got.metadata_snapshot.participants == METADATA.participants


def test_rules_come_one_after_another_and_a_cut_does_not_save_a_place() -> None:
    content = b'{"lat":48.2,"lon":16.4,"text":"a long text"}'
    assert sanitised(artifact(content), ["StripGeo", "TruncateContent(12)"]) == artifact(b'{"text":"a l')
    assert sanitised(artifact(content), ["TruncateContent(12)", "StripGeo"]) == artifact(b"")
    # The cut makes JSON of what was none before.
    assert sanitised(artifact(b'{"lat":null} and'), ["StripGeo", "TruncateContent(12)"]) == artifact(b"{}")


def test_what_has_nothing_to_take_out_is_the_same_object() -> None:
    rules = ["StripGeo", "RedactParticipants", "TruncateContent(9)", "StripCustomMetadata"]
    for payload in payloads("a"):
        assert sanitised(payload, rules) is payload
    for payload in (EVIDENCE, claim(v.TextObject("x" * 20)), artifact(None)):
        assert sanitised(payload, []) is payload
    plain = v.IngestEvidence(ID, bytes(32), "s", "", v.Metadata(7, None, ("participant-1",)))
    for payload in (plain, artifact(None), artifact(b""), claim(v.NumberObject(float("nan")))):
        assert sanitised(payload, rules) is payload


def test_what_was_sanitised_before_stays_wrapped_once() -> None:
    wrapped = v.Sanitised(("StripGeo",), EVIDENCE)
    got = sanitised(wrapped, ["StripCustomMetadata"])
    assert got == v.Sanitised(("StripGeo",), sanitised(EVIDENCE, ["StripCustomMetadata"]))
    assert sanitised(got, ["StripCustomMetadata"]) is got


RULES = st.lists(
    st.sampled_from(["StripGeo", "RedactParticipants", "StripCustomMetadata"])
    | st.integers(0, 30).map(lambda n: f"TruncateContent({n})"),
    max_size=4,
)
NAMES = st.sampled_from(["a", "lat", "Lng", "geo_x", "bob", "participant-2", "who", "cc"]) | st.text(max_size=4)
WORDS = st.text(max_size=6) | st.sampled_from(["lat: 5", "a@b.c"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["lat: 5", "a@b.c"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
TEXTS = (
    VALUES.map(json.dumps) | st.text(max_size=20) | st.sampled_from(["lat=5", '{"lat":null} x', '{"lon":5', "to a@b.c"])
)
BODIES = TEXTS.map(lambda text: text.encode("utf-8", "replace")) | st.binary(max_size=20)
LOCATIONS = st.builds(v.Location, st.floats(), st.floats(), st.none() | st.floats())
METADATAS = st.builds(
    v.Metadata,
    st.none() | st.integers(0, 9),
    st.none() | LOCATIONS,
    st.lists(NAMES, max_size=3).map(tuple),
    st.lists(st.tuples(NAMES, TEXTS), max_size=3).map(tuple),
)
OBJECTS = st.one_of(
    st.builds(v.TextObject, TEXTS), st.builds(v.StructuredObject, BODIES), st.builds(v.NumberObject, st.floats())
)
PAYLOADS: st.SearchStrategy[v.Payload] = st.one_of(
    st.builds(v.IngestEvidence, st.just(ID), st.just(bytes(32)), NAMES, TEXTS, st.none() | METADATAS),
    st.builds(claim, OBJECTS, st.sampled_from(v.ClaimType)),
    st.builds(artifact, st.none() | BODIES),
    st.builds(lambda text: v.FailWork(ID, 1, text, text, True), TEXTS),
    st.builds(lambda body, policy: v.ScheduleJob(ID, "k", body, policy), BODIES, BODIES),
    st.builds(lambda body: v.ReportProgress(ID, 1, body), BODIES),
)


@given(PAYLOADS, RULES)
def test_twice_is_once(payload: v.Payload, rules: list[str]) -> None:
    once = sanitised(payload, rules)
    assert sanitised(once, rules) is once
    assert type(once) is type(payload)
    # A placeholder can be longer than the name that it stands for, which may be a single letter.
    assert len(encode(v.PAYLOAD, once)) <= len(encode(v.PAYLOAD, payload)) * len("participant-100")


def geo_names(value: object) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(name for inner in value.values() for name in geo_names(inner))]
    return [name for inner in value for name in geo_names(inner)] if isinstance(value, list) else []


@pytest.mark.req("LW-29")
@given(VALUES, RULES)
def test_no_coordinate_survives_in_json(value: object, rules: list[str]) -> None:
    got = sanitised(artifact(json.dumps(value).encode()), [*rules, "StripGeo"])
    assert isinstance(got, v.CreateArtifact) and got.content_inline is not None
    try:
        left = json.loads(got.content_inline)
    except ValueError:
        return
    assert not {"lat", "Lng", "geo_x"} & set(geo_names(left))


@pytest.mark.req("LW-29")
@given(METADATAS, RULES)
def test_no_participant_survives(metadata: v.Metadata, rules: list[str]) -> None:
    evidence = v.IngestEvidence(ID, bytes(32), "s", " ".join(metadata.participants), metadata)
    got = sanitised(evidence, ["RedactParticipants", *rules])
    assert isinstance(got, v.IngestEvidence) and got.metadata_snapshot is not None
    shown = got.metadata_snapshot.participants
    order = list(dict.fromkeys(metadata.participants))
    assert shown == tuple(f"participant-{order.index(name) + 1}" for name in metadata.participants)
    assert "bob" not in got.source_anchor or "bob" not in metadata.participants
