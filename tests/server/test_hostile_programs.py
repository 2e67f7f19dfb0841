"""Hostile programs against a real `hocket mesh serve`, from an address of their own, while an honest one goes on: what
they send is refused and counted, takes nothing of another program, and stops nobody.
"""

import json
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hocket.node.runtime import Runtime
from hocket.server.routes import BODY_BYTES_MAX
from tests.server.served import PATIENCE_S, Served, serving
from tests.server.test_coordination_routes import Client
from tests.server.test_metrics import samples
from tests.server.test_worker_routes import Worker, shown
from tests.waiting import wait_for as until

HOSTILE = "127.0.0.2"
# So many jobs of the honest program stay within its own rate.
ROUNDS = 15


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home: Path = tmp_path_factory.mktemp("attacked") / "home"
    Runtime.init(home, name="box").close()
    with serving(home) as running:
        yield running


@pytest.fixture(scope="module")
def honest(attacked: Served) -> Client:
    return Client(attacked, "honest", "job:all:own.", "artifact:read:own.")


@pytest.fixture(scope="module")
def hostile(attacked: Served) -> Client:
    """It may do the same as the honest one, under its own name."""
    return Client(attacked, "hostile", "job:all:own.", "artifact:read:own.", "artifact:write")


def connection(served: Served) -> socket.socket:
    where = urlsplit(served.address)
    return socket.create_connection((where.hostname, where.port), PATIENCE_S, source_address=(HOSTILE, 0))


def head(client: Client, path: str, *lines: str, method: str = "POST", type: str = "application/json") -> bytes:
    all_lines = [
        f"{method} {path} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {client.token}",
        f"Content-Type: {type}",
    ]
    return "\r\n".join([*all_lines, *lines, "", ""]).encode()


def answer_of(sock: socket.socket) -> tuple[int, dict[str, object]]:
    """The status and the problem of the answer, which is the last one on its connection."""
    data = b""
    with suppress(ConnectionResetError):
        while part := sock.recv(65_536):
            data += part
            top, _, body = data.partition(b"\r\n\r\n")
            if body.endswith(b"}"):
                return int(top.split()[1]), json.loads(body)
    return int(data.split()[1]) if data else 0, {}


def refused(served: Served, reason: str) -> float:
    return samples(served).value("hocket_requests_refused_total", reason=reason) or 0


def counted(served: Served, reason: str, act: Callable[[], None], times: int = 1) -> None:
    before = refused(served, reason)
    act()
    until(lambda: refused(served, reason) >= before + times, f"the count of {reason!r}")


def job_done(honest: Client) -> float:
    """Submits a job, claims it and completes it; the seconds of the three requests."""
    began = time.perf_counter()
    made = honest("POST", "/v1/jobs", {"kind": "own.kind"})
    assert made.status == 201, made
    worker = Worker(honest, "own.kind", "honest-worker")
    (held,) = worker.claim()
    assert worker.end(held).status == 200
    return time.perf_counter() - began


def test_huge_bodies_are_refused_before_they_are_read(attacked: Served, hostile: Client, honest: Client):
    def announced() -> None:
        with closing(connection(attacked)) as sock:
            sock.sendall(head(hostile, "/v1/jobs", f"Content-Length: {10**15}") + b"{")
            assert answer_of(sock)[0] == 413

    def chunked() -> None:
        with closing(connection(attacked)) as sock:
            sock.sendall(head(hostile, "/v1/jobs", "Transfer-Encoding: chunked"))
            sent = 0
            with suppress(ConnectionError):
                while sent < 40 * BODY_BYTES_MAX:
                    sock.sendall(b"40000\r\n" + b"x" * 0x40000 + b"\r\n")
                    sent += 0x40000
            assert sent < 40 * BODY_BYTES_MAX, "it was cut off"

    def uploaded() -> None:
        with closing(connection(attacked)) as sock:
            path = f"/v1/contents/blake3:{'0' * 64}?type=acme.x"
            sock.sendall(
                head(hostile, path, f"Content-Length: {10**12}", method="PUT", type="application/octet-stream") + b"x"
            )
            assert answer_of(sock)[0] == 413

    for act in (announced, chunked, uploaded):
        counted(attacked, "an API request: The body is too long", act)
        job_done(honest)


def test_slow_heads_and_slow_bodies_make_nobody_slower(attacked: Served, hostile: Client, honest: Client):
    """All connections that one address may hold, each of which sends next to nothing. They cost no thread and no
    processor, so an honest program takes as long as before. The two are compared in turns.
    """
    alone, beside = [], []
    for _ in range(3):
        alone += [job_done(honest) for _ in range(ROUNDS)]
        with ExitStack() as stack:
            for number in range(100):
                sock = stack.enter_context(closing(connection(attacked)))
                if number % 2:
                    sock.sendall(b"POST /v1/jobs HTTP/1.1\r\nX-Slow: ")
                else:
                    sock.sendall(head(hostile, "/v1/jobs", f"Content-Length: {BODY_BYTES_MAX}") + b"{")
            beside += [job_done(honest) for _ in range(ROUNDS)]
    assert statistics.median(beside) < 5 * statistics.median(alone)


def test_a_slow_upload_holds_up_no_other_program(attacked: Served, hostile: Client, honest: Client):
    """More uploads than one token may have: the first ones wait for bytes, the others are refused."""
    with ExitStack() as stack:
        path = f"/v1/contents/blake3:{'0' * 64}?type=acme.x"
        top = head(hostile, path, "Content-Length: 1000000", method="PUT", type="application/octet-stream")
        socks = [stack.enter_context(closing(connection(attacked))) for _ in range(8)]

        def begin() -> None:
            for sock in socks:
                sock.sendall(top + b"x" * 1_000)

        counted(attacked, "an API request: Too many requests", begin, times=4)
        job_done(honest)


def test_wrong_fences_are_final_and_change_nothing(attacked: Served, hostile: Client, honest: Client):
    job = honest("POST", "/v1/jobs", {"kind": "own.fenced"}).json["job_id"]
    (held,) = Worker(hostile, "own.fenced").claim()

    def guess() -> None:
        for fence in (0, 2, 3, 2**53 - 1):
            for do in ("complete", "fail", "postpone", "yield"):
                body = {"fence": fence, "delay_ms": 1} if do == "postpone" else {"fence": fence}
                body |= {"error": "x"} if do == "fail" else {}
                answer = hostile("POST", f"/v1/jobs/{job}/{do}", body)
                assert answer.status in (400, 409), answer
                if answer.status == 409:
                    assert answer.json["type"] == "/v1/errors/stale-fence" and answer.json["final"]

    counted(attacked, "an API request: The hold is over", guess, times=8)
    assert shown(honest, job)["state"] == "running"
    assert Worker(hostile, "own.fenced").end(held).json["state"] == "succeeded"


def test_holds_and_claims_of_another_agent_are_out_of_reach(attacked: Served, hostile: Client, honest: Client):
    own = [honest("POST", "/v1/jobs", {"kind": "own.held"}).json["job_id"] for _ in range(3)]
    worker = Worker(honest, "own.held", "shared-name")
    held = worker.claim(3, "shared-claim")
    thief = Worker(hostile, "own.held", "shared-name")
    assert thief.claim(3, "shared-claim") == [], "the same worker's name and claim_id of another agent"

    def steal() -> None:
        for each in held:
            for do, more in (
                ("complete", {"result": "stolen"}),
                ("fail", {"error": "x"}),
                ("yield", {}),
                ("parts", {"parts": []}),
            ):
                assert thief.end(each, do, **more).status == 403, do
        ends = [{"job_id": each["job_id"], "fence": each["fence"], "do": "complete"} for each in held]
        assert {each.get("error") for each in thief.ask("end", ends=ends).json["ends"]} == {"not_authorised"}

    counted(attacked, "an API request: The token does not grant this", steal, times=12)
    renewal = thief.ask("renew", holds=[{"job_id": own[0], "fence": 1}])
    assert renewal.status == 403 or [each["state"] for each in renewal.json["holds"]] == ["lost"]
    assert thief.ask("goodbye").json == {"returned": 0}
    again = worker.claim(3, "shared-claim")
    assert [(each["job_id"], each["fence"]) for each in again] == [(each["job_id"], each["fence"]) for each in held]
    assert [worker.end(each, result="mine").json["state"] for each in held] == ["succeeded"] * 3
    assert {str(honest("GET", f"/v1/jobs/{job}/result").json["result"]) for job in own} == {"mine"}


def test_a_flood_stops_at_its_own_limits(attacked: Served, hostile: Client, honest: Client):
    """A program that asks as fast as it can, and one without a token: each request of the honest one is done."""
    over = threading.Event()
    seen: set[int] = set()

    def flood(token: str) -> None:
        top = f"GET /v1/jobs?kind=own. HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        while not over.is_set():
            with closing(connection(attacked)) as sock, suppress(OSError):
                while not over.is_set():
                    sock.sendall(top * 4)
                    seen.update(int(each.split()[0]) for each in sock.recv(1 << 20).split(b"HTTP/1.1 ")[1:])

    limits = "an API request: Too many requests"
    floods = [threading.Thread(target=flood, args=(token,)) for token in (hostile.token, hostile.token, "hkt_none")]

    def attack() -> None:
        for each in floods:
            each.start()
        try:
            until(lambda: {200, 401, 429} <= seen, "an end of the patience")
            for _ in range(ROUNDS):
                job_done(honest)
        finally:
            over.set()
            for each in floods:
                each.join(PATIENCE_S)

    counted(attacked, limits, attack)
    assert seen <= {200, 400, 401, 429}
