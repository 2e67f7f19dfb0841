"""The mesh: what sync, authority and the arbiter cost between nodes on one machine. Nodes are real homes with real
keys; whatever goes between them goes over HTTP on loopback, from one process to another. Signatures and
`synchronous=FULL` are on.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nacl.bindings import crypto_sign_open

import hocket
from bench import crew, meter, ours
from bench.subject import Result
from hocket.extensions import sim
from hocket.families.jobs.claiming import accept
from hocket.kernel.authority import Authority
from hocket.kernel.ids import node_id
from hocket.kernel.jws import open_detached
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.ops import decode, encode_sequence, read_sequence, with_signature
from hocket.kernel.ucan import ROOT, Delegation, issue
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import ClaimWork
from hocket.mesh import peers
from hocket.mesh.grants import parse_grants
from hocket.mesh.outgoing import PAGE_OPS_MAX
from hocket.node.node import Node
from hocket.node.runtime import Runtime

GRANTS = ("job:claim:bench.", "job:complete:bench.")
RAW_OPS_MAX = 20_000
WARM_UP = 5


def admit(home: Path, ops: int) -> Result:
    """Takes ops of another node in, batch by batch as the exchange does, without the network; and verifies signatures
    of the same ops with nothing around it, on all cores, before and after.
    """
    _, others = _two_nodes(home, ops)
    with Runtime.open(home / "node") as source, source.read() as session:
        count = session.op_count()
        bodies = [source.log.signed(row.body) for row in session.entries_after(0, session.head().seq)]
        author = source.home.node_key().public
    batches = [encode_sequence(bodies[first : first + PAGE_OPS_MAX]) for first in range(0, len(bodies), PAGE_OPS_MAX)]
    signed = [_signed(body) for body in bodies[:RAW_OPS_MAX]]
    raw = _raw_verify(signed, author)
    with Runtime.open(others) as runtime:
        start = time.perf_counter()
        taken = sum(runtime.log.admit(read_sequence(batch), decide=accept).appended for batch in batches)
        seconds = time.perf_counter() - start
    if taken != count:
        raise RuntimeError(f"{taken} ops taken in of {count}")
    raw = (raw + _raw_verify(signed, author)) / 2
    return {"seconds": seconds, "count": taken, "raw_rate": raw}


def _two_nodes(home: Path, ops: int) -> tuple[Path, Path]:
    """A node whose log has so many ops, three for each job, and an empty one of the same user."""
    ours.fill(home, ops // 3)
    full, empty = home / "node", home / "other"
    Runtime.init(empty, full / "user.key").close()
    return full, empty


def _signed(body: bytes) -> bytes:
    """An op as libsodium wants it: the signature, then what was signed."""
    op = decode(body)
    assert op.signature is not None
    unsigned = body[: len(body) - len(with_signature(b"", op.signature))]
    return open_detached(op.signature, op.node_id) + unsigned + b"\x00"


def _raw_verify(signed: list[bytes], public: bytes) -> float:
    """Signatures a second on all cores."""
    cores = os.cpu_count() or 1

    def verify(part: list[bytes]) -> None:
        for each in part:
            crypto_sign_open(each, public)

    with ThreadPoolExecutor(cores) as threads:
        start = time.perf_counter()
        list(threads.map(verify, [signed[core::cores] for core in range(cores)]))
        return len(signed) / (time.perf_counter() - start)


def first_sync(home: Path, ops: int) -> Result:
    """A whole log to a node that has nothing yet: one process serves, another one pulls."""
    full, empty = _two_nodes(home, ops)
    with _serving(full) as address:
        with Runtime.open(empty) as runtime, runtime.store.write() as session:
            peers.add(session, address, int(time.time() * 1000))
        done = subprocess.run(
            [sys.executable, "-m", "bench.mesh", "pull", str(empty), address], capture_output=True, text=True
        )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    result: Result = json.loads(done.stdout)
    if result["count"] < ops // 3 * 3:
        raise RuntimeError(f"{result['count']} ops arrived of {ops}")
    return result


@contextmanager
def _serving(home: Path) -> Iterator[str]:
    """`hocket mesh serve` on a home, in a process of its own; gives its address."""
    words = [sys.executable, "-m", "hocket.cli", "--home", str(home), "serve", "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["address"]
        finally:
            server.kill()


async def _pull(runtime: Runtime, address: str) -> Result:
    node = Node(runtime)
    try:
        exchanges = node.services().exchanges
        start = time.perf_counter()
        done = await exchanges.visit(address)
        seconds = time.perf_counter() - start
    finally:
        await node.finish()
    if done.state != peers.OK:
        raise RuntimeError(f"the peer is {done.state}: {done.detail}")
    return {"seconds": seconds, "count": done.pulled, "peak_kib": [meter.peak_kib()]}


def authorise(home: Path, delegations: int, questions: int) -> Result:
    """Asks whether nodes may claim jobs, each in its turn, under that many delegations: the user's to the first node,
    and that node's to all others, as invitations make them.
    """
    chance = random.Random(1)
    user, owner = SigningKey(chance.randbytes(32)), SigningKey(chance.randbytes(32))
    granted = parse_grants(GRANTS)
    held: list[Delegation] = [read_ucan(issue(user, owner.public, ROOT, 0, None))]
    for _ in range(delegations - 1):
        public = SigningKey(chance.randbytes(32)).public
        held.append(read_ucan(issue(owner, public, granted, 0, None, [held[0].cid])))
    nodes = [each.node for each in held]
    asked = [(node, ClaimWork(bytes(16), node, 30_000)) for node in nodes]
    authority = Authority(did_key(user.public), held, ())
    assert node_id(owner.public) == nodes[0]
    start = time.perf_counter()
    for number in range(questions):
        node, claim = asked[number % delegations]
        if authority.refusal(node, claim, 1_000, "bench.noop") is not None:
            raise RuntimeError("a node may not do what it was granted")
    return {"seconds": time.perf_counter() - start, "count": questions}


def hint_to_claim(home: Path, samples: int) -> Result:
    """From the moment a submit has returned on the arbiter's node, to the first line of the handler in a worker of an
    invited node; both nodes idle before each.
    """
    first, second = home / "node", home / "other"
    Runtime.init(first).close()
    chance, latencies = random.Random(1), []
    with _serving(first) as address:
        grants = [word for grant in GRANTS for word in ("--may", grant)]
        token = _hocket(first, "invite", "other", *grants, "--address", address)["token"]
        _hocket(second, "join", token)
        command = [sys.executable, "-m", "bench.mesh", "work", str(second)]
        with hocket.open(first) as node, crew.crew(home, command) as team:
            starts = meter.Starts(home)
            team.open_gate()
            for number in range(samples + WARM_UP):
                time.sleep(chance.uniform(0.1, 0.2))
                node.submit(ours.stamp, n=number)
                committed = time.monotonic()
                elapsed_ms = (starts.wait(number) - committed) * 1000
                if number >= WARM_UP:
                    latencies.append(elapsed_ms)
            reports = team.stop()
    return {"latencies_ms": latencies, "peak_kib": [report["peak_kib"] for report in reports]}


def simulate(home: Path, minutes: float) -> Result:
    """A mesh of twenty nodes on virtual time, for that many minutes and until it has settled, in this process."""
    report = sim.run(1, nodes=20, minutes=minutes)
    if report.violations:
        raise RuntimeError(str(report))
    return {"seconds": report.seconds, "count": report.nodes * report.virtual_s / 60}


def _hocket(home: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "hocket.cli", "--home", str(home), *words, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    what, home = sys.argv[1], Path(sys.argv[2])
    if what == "pull":
        with Runtime.open(home) as runtime:
            print(json.dumps(asyncio.run(_pull(runtime, sys.argv[3]))))
    else:
        meter.report_at_exit()
        with hocket.open(home) as node:
            meter.wait_for_gate()
            node.work([ours.stamp])


if __name__ == "__main__":
    main()
