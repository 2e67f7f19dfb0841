"""Content of artifacts over real sockets: stored under a hash, read whole and in ranges, and for whom."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from blake3 import blake3

from hocket.node.runtime import Runtime
from hocket.server import contents
from tests.server.served import Answer, Served, serving
from tests.server.served import hocket as command
from tests.server.test_coordination_routes import Client
from tests.server.test_job_routes import UNKNOWN, submitted

OCTETS = "application/octet-stream"
SMALL, LARGE = b"a small text", os.urandom(1_500_000)


def hash_of(data: bytes) -> str:
    return f"blake3:{blake3(data).hexdigest()}"


def put(client: Client, data: bytes, hash: str = "", query: str = "type=acme.texture") -> Answer:
    return client("PUT", f"/v1/contents/{hash or hash_of(data)}?{query}", data, content_type=OCTETS)


@pytest.fixture(scope="module")
def owner(served: Served) -> Client:
    return Client(served, "owner", "all")


@pytest.fixture(scope="module")
def painter(served: Served) -> Client:
    return Client(served, "painter", "artifact:write", "job:read:paint.", "artifact:read:paint.")


@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["none", "small", "large"])
def test_content_is_stored_once_and_read_by_its_artifact_and_by_its_hash(owner: Client, data: bytes):
    kept = put(owner, data)
    assert (kept.status, kept.json["hash"], kept.json["size"]) == (200, hash_of(data), len(data))
    assert put(owner, data).json == kept.json
    sha = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert put(owner, data, sha).json == kept.json, "the same content under its other hash"
    assert put(owner, data, query="type=acme.other").json["artifact_id"] != kept.json["artifact_id"]
    for path in (f"/v1/artifacts/{kept.json['artifact_id']}/content", f"/v1/contents/{hash_of(data)}"):
        answer = owner("GET", path)
        assert (answer.status, answer.body, answer.headers["etag"]) == (200, data, f'"{hash_of(data)[7:]}"')
        assert (answer.headers["content-type"], answer.headers["x-content-type-options"]) == (OCTETS, "nosniff")
        assert (answer.headers["accept-ranges"], answer.headers["content-length"]) == ("bytes", str(len(data)))
        assert answer.headers["content-disposition"] == "attachment"


def test_what_does_not_match_its_hash_is_not_stored(served: Served, owner: Client):
    before = owner("GET", "/v1/artifacts?limit=1000").json["items"]
    for data in (SMALL, LARGE):
        for named in (f"blake3:{'0' * 64}", f"sha256:{'0' * 64}"):
            refused = put(owner, data[:-1], named)
            assert refused.status == 400 and "nothing was stored" in refused.json["message"]
    assert owner("GET", "/v1/artifacts?limit=1000").json["items"] == before
    for hash in ("md5:00", "blake3:xyz", "0" * 64):
        assert put(owner, SMALL, hash).status == 400, hash
    for query in ("", "type=", "type=hocket.proof", "type=acme.x&ttl_ms=0", "type=acme.x&colour=red"):
        assert put(owner, SMALL, query=query).status == 400, query
    plain = owner("PUT", f"/v1/contents/{hash_of(SMALL)}?type=acme.x", SMALL, content_type="text/plain")
    assert (plain.status, plain.json["error"]) == (415, "bad_content_type")


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("asked", "first", "end"),
    [
        *[("bytes=0-0", 0, 1), ("bytes=3-7", 3, 8), ("bytes=5-", 5, None), ("bytes=-4", -4, None)],
        *[("bytes=0-99999999", 0, None), ("bytes=-99999999", 0, None), ("BYTES = 0-1", 0, None)],
    ],
)
def test_a_range_is_sent(owner: Client, data: bytes, asked: str, first: int, end: int | None):
    path = f"/v1/artifacts/{put(owner, data).json['artifact_id']}/content"
    expected = data[first:end]
    answer = owner("GET", path, Range=asked)
    assert answer.body == expected
    if asked.startswith("BYTES ="):  # a header that cannot be read asks for all
        assert answer.status == 200 and "content-range" not in answer.headers
        return
    start = len(data) - len(expected) if first < 0 or asked.startswith("bytes=-") else first
    assert answer.status == 206 and answer.headers["content-length"] == str(len(expected))
    assert answer.headers["content-range"] == f"bytes {start}-{start + len(expected) - 1}/{len(data)}"


def test_parts_of_a_download_that_was_cut_off_make_the_whole(owner: Client):
    path = f"/v1/contents/{put(owner, LARGE).json['hash']}"
    tag = owner("GET", path, Range="bytes=0-0").headers["etag"]
    parts = [
        owner("GET", path, Range=f"bytes={at}-{at + 399_999}", If_Range=tag) for at in range(0, len(LARGE), 400_000)
    ]
    assert {each.status for each in parts} == {206} and b"".join(each.body for each in parts) == LARGE
    # Content that has changed comes whole, and several ranges are all.
    for header in ({"If_Range": '"other"'}, {"If_Range": "Thu, 01 Jan 1970 00:00:00 GMT"}, {}):
        several = {"Range": "bytes=0-1" if header else "bytes=0-1,5-6"}
        whole = owner("GET", path, **several, **header)
        assert (whole.status, whole.body) == (200, LARGE)


def test_a_range_that_the_content_does_not_have_is_refused_with_its_size(owner: Client):
    for data, asked in ((SMALL, "bytes=12-"), (SMALL, "bytes=99-100"), (b"", "bytes=0-0"), (SMALL, "bytes=-0")):
        answer = owner("GET", f"/v1/contents/{put(owner, data).json['hash']}", Range=asked)
        assert (answer.status, answer.json["type"]) == (416, "/v1/errors/bad-range"), asked
        assert answer.headers["content-range"] == f"bytes */{len(data)}"


def test_content_that_is_there_already_is_only_its_tag(owner: Client):
    path = f"/v1/contents/{put(owner, LARGE).json['hash']}"
    tag = owner("GET", path, Range="bytes=0-0").headers["etag"]
    for has in (tag, "*", f'"x", {tag}'):
        answer = owner("GET", path, If_None_Match=has)
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tag)


def test_content_is_for_who_may_read_its_artifact(served: Served, owner: Client, painter: Client):
    own, other = submitted(served, "paint.wall"), submitted(served, "secret.wall")
    texts = {name: f"the text of {name}".encode() for name in ("own", "other", "of no job")}
    kept = put(painter, texts["own"], query=f"type=acme.text&job={own}").json
    assert put(painter, texts["own"], query=f"type=acme.text&job={other}").status == 403, "a job that it may not read"
    assert put(owner, texts["other"], query=f"type=acme.text&job={other}").status == 200
    assert put(painter, texts["of no job"]).status == 200
    assert put(owner, b"x", query=f"type=acme.text&job={UNKNOWN}").status == 404
    assert painter("GET", f"/v1/contents/{kept['hash']}").body == texts["own"]
    assert painter("GET", f"/v1/artifacts/{kept['artifact_id']}/content").body == texts["own"]
    for name in ("other", "of no job"):
        assert painter("GET", f"/v1/contents/{hash_of(texts[name])}").status == 404, "it may not even know of it"
        (found,) = [
            each
            for each in owner("GET", "/v1/artifacts?limit=1000").json["items"]
            if each["hash"] == hash_of(texts[name])
        ]
        assert painter("GET", f"/v1/artifacts/{found['artifact_id']}/content").status == 403
    reader = Client(served, "reader", "artifact:read")
    assert put(reader, b"y").status == 403 and reader("GET", f"/v1/contents/{kept['hash']}").status == 200
    assert painter("GET", f"/v1/contents/{hash_of(b'nobody has this')}").status == 404


def test_content_that_was_evicted_is_gone(served: Served, owner: Client):
    data = os.urandom(100_000)
    kept = put(owner, data).json
    assert command(served.home, "artifacts", "evict", kept["artifact_id"]).returncode == 0
    assert owner("GET", f"/v1/contents/{kept['hash']}").status == 404
    gone = owner("GET", f"/v1/artifacts/{kept['artifact_id']}/content")
    assert gone.status == 409 and "evicted" in gone.json["message"]
    assert put(owner, data).json["artifact_id"] != kept["artifact_id"]
    assert owner("GET", f"/v1/contents/{kept['hash']}").body == data


def test_damaged_content_does_not_arrive_whole(served: Served, owner: Client):
    data = os.urandom(600_000)
    kept = put(owner, data).json
    (blob,) = served.home.rglob(kept["hash"][7:])
    damaged = bytearray(data)
    damaged[300_000] ^= 1
    blob.write_bytes(damaged)
    with pytest.raises(Exception, match="IncompleteRead"):
        owner("GET", f"/v1/contents/{kept['hash']}")


def test_an_upload_that_is_too_long_is_refused_before_it_is_read(owner: Client):
    hash = "blake3:" + "0" * 64
    for headers in ({"content_length": str(contents.UPLOAD_BYTES_MAX + 1)}, {"content_length": "9" * 30}):
        refused = owner("PUT", f"/v1/contents/{hash}?type=acme.x", b"x", content_type=OCTETS, **headers)
        # A length that is no number of bytes is no HTTP.
        assert refused.status in (413, 400), refused
    assert (
        str(contents.UPLOAD_BYTES_MAX)
        in owner(
            "PUT", f"/v1/contents/{hash}?type=acme.x", bytes(contents.UPLOAD_BYTES_MAX + 1), content_type=OCTETS
        ).json["message"]
    )


def test_many_uploads_of_the_same_content_at_once_are_one_artifact_and_leave_nothing(tmp_path: Path):
    home = tmp_path / "home"
    Runtime.init(home, name="box").close()
    data = os.urandom(2_000_000)
    with serving(home) as running:
        writer = Client(running, "writer", "all")
        with ThreadPoolExecutor(4) as pool:
            kept = [each.json for each in pool.map(lambda _: put(writer, data), range(4))]
        assert len({each["artifact_id"] for each in kept}) == 1
        # What was received is in no file but its own.
        large = [each for each in home.rglob("*") if each.is_file() and each.stat().st_size >= len(data)]
        assert [each.name for each in large] == [kept[0]["hash"][7:]]
