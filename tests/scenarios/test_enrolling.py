"""Scenarios of two machines and more: one lets others in, for all kinds of work or for one, and they work for it."""

import json
import struct
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from hocket.kernel.clock import Hlc
from hocket.kernel.ids import parse_ulid
from hocket.kernel.jws import make_bearer
from hocket.kernel.mesh_rules import rules_hash
from hocket.kernel.ops import Op, bound, decode, encode, encode_sequence, link_to, sign, unsigned
from hocket.kernel.vocabulary import ClaimWork, CompleteJob, IngestEvidence, Location, Payload, Sanitised, Telemetry
from hocket.mesh import wire
from tests.scenarios.machines import Machine, Reason, agree, journal, machines, until, verify

GRAPH = str(Path(__file__).with_name("graph.py"))
# Where graph.py says that its notes were written.
PLACE = Location(52.520008, 13.404954)


@pytest.mark.req("LW-36", "LW-01", "LW-23", "LW-24", "LW-39", "LW-40")
def test_enrollment(tmp_path: Path):
    with machines(tmp_path, "owner", "gpu") as [owner, gpu]:
        owner("init")
        owner.serve()
        token = owner.invite("gpu", "job:claim:acme.", "job:complete:acme.")
        joined = gpu("join", token, "--json").json
        assert joined["inviter"] == owner.node and joined["peers"]
        # The key was made there and is nowhere else; the owner's stayed where it was.
        assert (gpu.home / "node.key").exists() and not (gpu.home / "user.key").exists()
        assert standing(owner, "gpu") == "pending"
        worker = gpu.work()
        until(lambda: standing(owner, "gpu") == "active", "the new node to be seen")
        # The owner has no handlers: whoever answers is the other machine.
        done = owner("submit", "acme.add", '{"sum": 42}', "--wait-for", "60s", "--json").json
        assert done["result"] == {"sum": 42}
        [run] = [line for line in journal(tmp_path) if line["event"] == "start"]
        assert (run["job"], run["machine"], run["fence"]) == (done["job_id"], "gpu", 1)
        # What the worker offered counts by the coordinator's word.
        assert owner.ops_of(done["job_id"]) == ["ScheduleJob", "AcceptWork", "AcceptWork"]
        assert worker.stop().out == "done: 1 succeeded, 0 failed, 0 handed back\n"
        agree(owner, gpu)
        owner.stop()
        verify(owner, gpu)


@pytest.mark.req("LW-36", "LW-24", "LW-25", "LW-26", "LW-28", "LW-29", "LW-31")
def test_scoped_enrollment(tmp_path: Path):
    """A worker for one prefix of kinds does those and no others, sees those and no others, and trying does not help."""
    with machines(tmp_path, "owner", "gpu", "phone") as [owner, gpu, phone]:
        owner("init")
        address = owner.serve()
        prefix = "acme.render."
        grants = (f"job:claim:{prefix}", f"job:complete:{prefix}", f"job:read:{prefix}")
        gpu("join", owner.invite("gpu", *grants))
        secret, mine = owner.submit_all(
            [{"kind": "acme.bank.pay", "payload": {"sum": 9}}, {"kind": "acme.render.frame", "payload": {"frame": 1}}]
        )
        # It has handlers for both, and the one that it may not do was there first.
        worker = gpu.work()
        until(lambda: owner.is_done(mine), "the job that it may do")
        assert worker.stop().out == "done: 1 succeeded, 0 failed, 0 handed back\n"
        assert owner.state(secret) == "pending"
        assert {line["job"] for line in journal(tmp_path)} == {mine}
        # It has heard nothing of the other job, and may not make one.
        gpu("sync")
        assert not gpu.has(secret) and b"acme.bank" not in bodies(gpu)
        assert "no job" in gpu("show", secret, code=2).sentence
        assert gpu("submit", "acme.render.frame", code=4) and gpu("submit", "acme.bank.pay", code=4)
        for place in (owner, gpu):
            assert place("may", "gpu", "claim", "acme.render.frame").out.startswith("yes")
            assert place("may", "gpu", "claim", "acme.bank.pay", code=4).out.startswith("no")
        # Ops made by hand, with its key and past its own permissions, straight to the server: they are on the log and
        # nowhere else, also on a machine that only ever heard of them.
        job_id = parse_ulid(secret)
        payloads: list[Payload] = [
            ClaimWork(job_id, gpu.runtime.log.node, 60_000),
            CompleteJob(job_id, (), (), Telemetry(1, None, None, None)),
        ]
        before = owner.jobs()
        counts = {"appended": 0, "duplicated": 0, "rejected": 2, "held": 0, "unlinked": 0}
        assert push(gpu, owner, address, payloads) == counts
        phone("init", "--user-key", owner.home / "user.key")
        phone("peers", "add", address)
        phone("sync")
        for place in (owner, phone):
            made = [line for line in place.ops() if line.author == gpu.node][-2:]
            assert [(line.type, line.reason) for line in made] == [
                ("ClaimWork", Reason.UNAUTHORISED),
                ("CompleteJob", Reason.UNAUTHORISED),
            ]
            assert place.jobs() == before and place.state(secret) == "pending"
        agree(owner, phone)
        owner.stop()
        verify(owner, gpu, phone)


@pytest.mark.req("LW-36", "LW-25", "LW-27", "LW-29")
def test_scoped_enrollment_sanitises_and_ends_with_a_revocation(tmp_path: Path):
    """A node reads evidence without places and people. After its revocation it hears nothing more, and what it wrote
    leaves the roster and stays on the log.
    """
    with machines(tmp_path, "owner", "reader") as [owner, reader]:
        owner("init")
        owner.serve()
        rules = "StripGeo,RedactParticipants"
        grants = ("--may", "evidence:read", "--may", "job:schedule:acme.", "--may", "job:read:acme.")
        reader("join", owner("invite", "reader", *grants, "--sanitize", rules, "--json").json["token"])
        ingest(owner, "Ada drinks tea")
        reader("sync")
        place, person = struct.pack("<d", PLACE.latitude), b"Ada"
        assert place in bodies(owner) and person in bodies(owner)
        assert place not in bodies(reader) and person not in bodies(reader)
        # The evidence is there all the same, and says what was taken from it.
        [op] = [op for op in ops(reader) if isinstance(op.payload, Sanitised)]
        assert isinstance(op.payload, Sanitised) and op.payload.rules == ("StripGeo", "RedactParticipants")
        evidence = op.payload.payload
        assert isinstance(evidence, IngestEvidence) and evidence.source_type == "note"
        assert reader.reasons("Sanitised") == {0: 1}

        mine = reader.submit("acme.one")
        reader("sync")
        assert owner.state(mine) == "pending"
        assert "reader is revoked" in owner("revoke", "reader", "--yes").out
        assert not owner.has(mine)
        [line] = [line for line in owner.ops() if line.job == mine]
        assert line.reason == Reason.REVOKED
        ingest(owner, "Bob drinks coffee")
        heard = bodies(reader)
        assert "did not sync" in reader("sync", code=1).sentence
        assert bodies(reader) == heard and b"Bob" not in heard
        late = reader.submit("acme.late")
        reader("sync", code=1)
        assert late not in {line.job for line in owner.ops()}
        owner.stop()
        verify(owner, reader)


@pytest.mark.req("LW-13", "LW-39")
def test_a_newcomer_that_has_not_heard_who_decides_starts_nothing(tmp_path: Path):
    """The inviting machine is gone before the first exchange. An open job needs nobody's word."""
    with machines(tmp_path, "owner", "gpu") as [owner, gpu]:
        owner("init")
        address = owner.serve()
        gpu("join", owner.invite("gpu", "job:all:acme."))
        owner.cut_power()
        job = gpu.submit("acme.one")
        gpu.work().says("cannot be reached")
        assert gpu("submit", "acme.open", '{"n": 1}', "--open", "--wait-for", "60s").code == 0
        assert gpu.state(job) == "pending" and job not in {line["job"] for line in journal(tmp_path)}
        owner.serve("--port", urlsplit(address).port)
        until(lambda: owner.is_done(job), "the job")
        assert [line["fence"] for line in journal(tmp_path) if line["job"] == job] == [1, 1]


def standing(owner: Machine, name: str) -> str:
    [found] = [each["standing"] for each in owner("nodes", "--json").json if each["name"] == name]
    return str(found)


def ingest(machine: Machine, text: str) -> None:
    machine.submit("graph.ingest", json.dumps({"text": text}))
    assert machine.start("work", GRAPH, "--until-idle").ended().code == 0


def bodies(machine: Machine) -> bytes:
    """All that its ops say; signatures could contain any word."""
    return b"".join(unsigned(op) for op in ops(machine))


def ops(machine: Machine) -> list[Op]:
    return [decode(row.body) for row in machine.look(lambda session: session.ops_after(0, 1_000_000))]


def push(machine: Machine, to: Machine, address: str, payloads: list[Payload]) -> dict[str, int]:
    """One POST /ops of ops that the machine's software would not have written. They are on its log, too, so that it has
    one history.
    """
    log, key = machine.runtime.log, machine.runtime.home.node_key()
    now, last = log.reading(), machine.look(lambda session: session.head().last)
    made = []
    for number, payload in enumerate(payloads):
        op, _ = bound(Hlc(now.wall + 1, number, log.node), (link_to(last),), payload)
        last = op.id
        made.append(encode(sign(op, key)))
    log.admit([(each, decode(each)) for each in made])
    headers = {
        "authorization": f"Bearer {make_bearer(key, str(to.runtime.log.node), log.physical() // 1000, 'by-hand')}",
        "content-type": wire.OCTETS,
        wire.RULES_HASH: rules_hash(log.rules).hex(),
    }
    connection = HTTPConnection(urlsplit(address).netloc, timeout=30)
    try:
        connection.request("POST", wire.OPS, encode_sequence(made), headers)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, (response.status, body)
        return msgspec.json.decode(body, type=dict[str, int])
    finally:
        connection.close()
