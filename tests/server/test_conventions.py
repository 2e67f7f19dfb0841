"""What every answer of the API keeps to: tags, compression, limits in headers, a page for a browser, a base path, and
connections that stay open. The server is a real process.
"""

import gzip
import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hocket.api import Service, programs
from hocket.errors import Usage
from hocket.mesh.quotas import Buckets
from hocket.mesh.wire import Reply, Request
from hocket.node.runtime import Runtime
from hocket.server.negotiation import GZIP_BYTES_MIN, negotiated, reads_gzip
from hocket.server.proxies import TrustedProxies, checked_base_path, without_base
from tests.server.served import PATIENCE_S, Served, serving

HTML = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="module")
def token(served: Served) -> str:
    return made(served.home, "ci", "all")


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server behind a proxy on this machine."""
    home: Path = tmp_path_factory.mktemp("behind") / "home"
    Runtime.init(home, name="box").close()
    with serving(home, "--base-path", "/hocket/", "--trust-proxy", "127.0.0.0/8", "--rate", "1000") as running:
        yield running


def made(home: Path, name: str, *may: str) -> str:
    with Service(Runtime.open(home)) as service:
        return programs.create(service, name, may).token


# Tags.


def test_an_answer_that_has_not_changed_is_only_its_tag(served: Served, token: str):
    first = served.ask("GET", "/v1/kinds", token)
    tag = first.headers["etag"]
    assert tag.startswith('W/"') and first.headers["cache-control"] == "private, no-cache"
    for has in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        again = served.ask("GET", "/v1/kinds", token, headers={"If-None-Match": has})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        assert "content-length" not in again.headers and "content-type" not in again.headers
    assert served.ask("GET", "/v1/kinds", token, headers={"If-None-Match": 'W/"0"'}).status == 200


def test_an_answer_that_has_changed_comes_whole(served: Served, token: str):
    path = "/v1/rows/memories/ada"
    served.ask("PUT", path, token, {"value": 1})
    tag = served.ask("GET", path, token).headers["etag"]
    version = served.ask("GET", path, token).json["version"]
    served.ask("PUT", path, token, {"value": 2, "version": version})
    answer = served.ask("GET", path, token, headers={"If-None-Match": tag})
    assert answer.status == 200 and answer.json["value"] == 2 and answer.headers["etag"] != tag


def test_a_tag_opens_nothing(served: Served, token: str):
    poor = made(served.home, "poor", "lock:read")
    for each, status in ((None, 401), (poor, 403)):
        assert served.ask("GET", "/v1/kinds", each, headers={"If-None-Match": "*"}).status == status


def test_what_changes_something_has_no_tag(served: Served, token: str):
    answer = served.ask("POST", "/v1/inbox", token, {"to": "ci", "body": "x"}, {"If-None-Match": "*"})
    assert answer.status == 201 and "etag" not in answer.headers and answer.headers["cache-control"] == "no-store"
    assert "etag" not in served.ask("GET", "/v1/nowhere", token).headers


# Compression.


def test_a_long_answer_is_compressed_for_a_program_that_reads_that(served: Served, token: str):
    plain = served.ask("GET", "/v1/openapi.json")
    small = served.ask("GET", "/v1/openapi.json", headers={"Accept-Encoding": "br, gzip;q=0.5"})
    assert small.headers["content-encoding"] == "gzip" and small.headers["vary"] == "accept-encoding"
    assert gzip.decompress(small.body) == plain.body and len(small.body) < len(plain.body) / 4
    assert small.headers["etag"] == plain.headers["etag"] and "content-encoding" not in plain.headers
    short = served.ask("GET", "/v1/kinds", token, headers={"Accept-Encoding": "gzip"})
    assert len(short.body) < GZIP_BYTES_MIN and "content-encoding" not in short.headers


@pytest.mark.parametrize(
    ("accepts", "reads"),
    [
        *[("gzip", True), ("GZIP ; q=1", True), ("deflate, gzip", True), ("*", True), ("gzip;q=0.001", True)],
        *[("", False), ("identity", False), ("gzip;q=0", False), ("*;q=0", False), ("gzip;q=0, *", False)],
        *[("gzip;q=x", False), ("xgzip", False)],
    ],
)
def test_which_programs_read_gzip(accepts: str, reads: bool):
    assert reads_gzip({"accept-encoding": accepts}) is reads


def test_answers_of_the_same_bytes_have_one_tag():
    one, other = (negotiated(Request("GET", "/"), Reply(200, {}, body)) for body in (b"a", b"b"))
    assert one.headers["etag"] != other.headers["etag"]
    assert one == negotiated(Request("GET", "/"), Reply(200, {}, b"a"))


# Limits.


def test_every_answer_says_what_is_left_of_the_limits(served: Served):
    own = made(served.home, "limited", "mesh:read")
    answers = [served.ask("GET", path, own) for path in ("/v1/nodes", "/v1/kinds", "/v1/nodes")]
    assert [each.status for each in answers] == [200, 403, 200]
    for each in answers:
        assert each.headers["ratelimit-policy"].startswith('"rate";q=400;w=2, "open";q=128;qu="concurrent-requests"')
        assert '"body";q=4194304;qu="content-bytes"' in each.headers["ratelimit-policy"]
        assert each.headers["ratelimit"].endswith(';t=0, "open";r=128')
    assert 390 < int(answers[0].headers["ratelimit"].partition("r=")[2].partition(";")[0]) <= 400
    assert "ratelimit" not in served.ask("GET", "/v1/nodes").headers


def test_what_is_left_of_a_rate():
    now = 0.0
    buckets = Buckets(2, 10, lambda: now)
    assert buckets.level("ci") == 10
    assert [buckets.take("ci") for _ in range(10)] == [0] * 10 and buckets.level("ci") == 0
    now = 1.0
    assert (buckets.level("ci"), buckets.level("other")) == (2, 10)


# Connections.


def test_a_connection_serves_many_requests(served: Served, token: str):
    where = urlsplit(served.address)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE_S)
    connection.connect()
    own = connection.sock
    for path, status in (("/v1/nodes", 200), ("/v1/nowhere", 404), ("/v1/nodes", 200)):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        reply = connection.getresponse()
        reply.read()
        assert reply.status == status and connection.sock is own
    connection.close()


# A browser.


@pytest.mark.parametrize("path", ["/v1", "/v1/"])
def test_a_browser_gets_a_page_that_says_what_this_is(served: Served, path: str):
    page = served.ask("GET", path, headers=HTML)
    text = page.body.decode()
    assert page.status == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert 'href="/v1/openapi.json"' in text and "hocket token create" in text and "docs/http.md" in text
    assert "<script" not in text and "default-src 'none'" in page.headers["content-security-policy"]
    # It is for strangers.
    assert "box" not in text and str(served.home) not in text
    assert served.ask("HEAD", path, headers=HTML).body == b""
    index = served.ask("GET", path)
    assert index.json["description"] == "/v1/openapi.json" and index.json["name"] == "Hocket"
    assert served.ask("POST", path, headers=HTML).status == 405


# Behind a proxy.


def test_a_server_answers_below_its_base_path(behind: Served):
    token = made(behind.home, "ci", "all")
    for base in ("/hocket", ""):
        assert behind.ask("GET", f"{base}/healthz").status == 200
        assert behind.ask("GET", f"{base}/v1/nodes", token).json["items"][0]["name"] == "box"
        assert behind.ask("PUT", f"{base}/v1/rows/memories/a%2Fb", token, {"value": 1}).status in (200, 409)
    assert behind.ask("GET", "/hocketeer/v1/nodes", token).status == 404
    assert 'href="/hocket/v1/openapi.json"' in behind.ask("GET", "/hocket/v1", headers=HTML).body.decode()
    assert behind.ask("GET", "/hocket/v1/openapi.json").json["servers"] == [{"url": "/hocket"}]
    assert behind.ask("GET", "/hocket/v1/nodes", token).headers["ratelimit-policy"].startswith('"rate";q=2000;w=2,')


def test_only_a_trusted_proxy_may_name_another_caller(behind: Served, served: Served):
    """Metrics need no token on this machine, and a proxy's callers are not on it."""
    for server, status in ((behind, 401), (served, 200)):
        assert server.ask("GET", "/metrics", headers={"X-Forwarded-For": "203.0.113.9"}).status == status


def test_the_caller_behind_a_chain_of_proxies():
    trusted = TrustedProxies(["10.0.0.0/8", "127.0.0.1", "2001:db8::/32"])
    assert trusted.caller("10.1.2.3", "203.0.113.9, 198.51.100.4, 10.9.9.9") == ("198.51.100.4", False)
    assert trusted.caller("::ffff:10.1.2.3", "198.51.100.4") == ("198.51.100.4", False)
    assert trusted.caller("2001:db8::7", "2001:db9:1:2::9") == ("2001:db9:1:2::/64", False)
    assert trusted.caller("10.1.2.3", "") == trusted.caller("10.1.2.3", " , ") == ("10.1.2.3", True)
    # A machine of the proxies' own network asks by way of them.
    assert trusted.caller("10.1.2.3", "10.4.4.4") == ("10.4.4.4", False)
    assert trusted.caller("192.0.2.1", "198.51.100.4") == ("192.0.2.1", False)
    # Nothing that a caller makes up is read without end.
    assert trusted.caller("10.1.2.3", "198.51.100.4" + ", 10.0.0.1" * 10_000) == ("10.0.0.1", False)
    assert not TrustedProxies().has("127.0.0.1") and not trusted.has("nonsense")
    for bad in ("nginx", "10.0.0.0/64", "", "10.0.0.1:80"):
        with pytest.raises(Usage, match="IP address of a proxy or a network"):
            TrustedProxies([bad])


@pytest.mark.parametrize("path", ["hocket", "/a//b", "/a b", "/..", "/a/../b", '/"', "/a?b", "/" + "x" * 300, "//host"])
def test_a_bad_base_path_is_refused(path: str):
    with pytest.raises(Usage, match="base path"):
        checked_base_path(path)


def test_a_base_path_is_cut_off_once():
    assert checked_base_path("/") == checked_base_path("") == "" and checked_base_path("/a/b.c-d_1/") == "/a/b.c-d_1"
    assert [without_base(each, "/a") for each in ("/a", "/a/v1", "/a/a", "/ab", "/b")] == [
        "/",
        "/v1",
        "/a",
        "/ab",
        "/b",
    ]
    assert without_base("/a", "") == "/a"


# What is refused is counted.


def test_what_the_api_refuses_is_in_the_metrics(served: Served):
    poor = made(served.home, "refused", "mesh:read")
    big = b"[" + b" " * 5_000_000
    json_type = {"Content-Type": "application/json"}
    writer = made(served.home, "writer", "inbox:write")
    assert served.ask("POST", "/v1/inbox", poor, {"to": "ci", "body": "x"}).status == 403
    assert served.ask("POST", "/v1/inbox", writer, big, json_type).status == 413
    assert served.ask("POST", "/v1/inbox", writer, b"x", {"Content-Type": "text/plain"}).status == 415
    # Another answer than the one that counts for a second.
    counted = served.ask("GET", "/metrics", headers={"Accept": "text/plain; q=0.9"}).body.decode()
    for reason in ("The token does not grant this", "The body is too long", "The body is of another type"):
        assert f'reason="an API request: {reason}"' in counted
