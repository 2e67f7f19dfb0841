"""What many nodes of a run compute from the same bytes with the same result is computed once, while the run lasts."""

import functools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from operator import itemgetter
from typing import Any

from hocket.bus import envelope, messages
from hocket.bus.envelope import Envelope
from hocket.bus.messages import is_match
from hocket.kernel import ops, ucan
from hocket.kernel.clock import pack, unpack
from hocket.kernel.frontier import Frontier, decode_frontier, parse_frontier
from hocket.kernel.keys import verify
from hocket.kernel.postcard import Reader
from hocket.log import author_check, permissions
from hocket.mesh import client, gate_requests, outgoing, peer_exchange, peers
from hocket.store import MEMORY
from hocket.store import open as open_store

REMEMBERED = 20_000
FRONTIERS = 256
OPS_MAX = 10_000_000
# What SQLite calls a transaction that has written or may write: it can still be undone.
WRITING = 2


@contextmanager
def remembered() -> Iterator[None]:
    with closing(open_store(MEMORY)) as store, store.read() as session:
        session_type = type(session)
    cached = functools.lru_cache(maxsize=REMEMBERED)
    parse, own = _copied(parse_frontier), _once(outgoing.own_frontier)
    calls: dict[tuple[Any, str], Callable[..., Any]] = {
        **{(module, "verify"): cached(verify) for module in (ops, envelope, ucan)},
        **{(module, "read_ucan"): cached(ucan.read) for module in (permissions, author_check)},
        **{(module, "parse_frontier"): parse for module in (client, gate_requests)},
        **{(module, "own_frontier"): own for module in (outgoing, peer_exchange)},
        (peers, "decode_frontier"): _copied(decode_frontier),
        (outgoing, "pack"): cached(pack),
        (outgoing, "unpack"): cached(unpack),
        (envelope, "_read"): _read_once(envelope._read),
        (messages, "is_match"): cached(is_match),
        (session_type, "frontier"): _from_new_ops(session_type.frontier),
    }
    originals = {(place, name): getattr(place, name) for place, name in calls}
    for (place, name), call in calls.items():
        setattr(place, name, call)
    try:
        yield
    finally:
        for (place, name), call in originals.items():
            setattr(place, name, call)


def _copied(read: Callable[[Any], Frontier]) -> Callable[[Any], Frontier]:
    known = functools.lru_cache(maxsize=FRONTIERS)(read)
    return lambda data: dict(known(data))


def _read_once(read: Callable[[Reader], Envelope]) -> Callable[[Reader], Envelope]:
    @functools.lru_cache(maxsize=REMEMBERED)
    def known(data: bytes) -> tuple[Envelope, int]:
        reader = Reader(data)
        return read(reader), reader.pos

    def read_once(reader: Reader) -> Envelope:
        found, reader.pos = known(reader.data)
        return found

    return read_once


def _from_new_ops(read: Callable[[Any], dict[bytes, bytes]]) -> Callable[[Any], dict[bytes, bytes]]:
    """Reads the ops since the last time, if the last one of that time is still there."""

    def frontier(session: Any) -> dict[bytes, bytes]:
        if session._connection.txn_state() == WRITING:
            return read(session)
        last, known = session.__dict__.get("_frontier", ((0, b""), {}))
        rows = [(row.seq, row.hlc) for row in session.ops_after(last[0] - 1, OPS_MAX)]
        if rows and rows[0] == last:
            found = {hlc[12:]: hlc for _, hlc in sorted(rows[1:], key=itemgetter(1))}
            merged = known | {node: hlc for node, hlc in found.items() if hlc > known.get(node, b"")}
            known = merged if len(merged) == len(known) else dict(sorted(merged.items()))
        else:
            known = read(session)
        session.__dict__["_frontier"] = rows[-1] if rows else (0, b""), known
        return dict(known)

    return frontier


def _once(read: Callable[[Any], dict[Any, Any]]) -> Callable[[Any], dict[Any, Any]]:
    """Reads again only after a change of the store, which is in memory and has one connection."""

    def read_once(session: Any) -> dict[Any, Any]:
        connection = session._connection
        if connection.txn_state() == WRITING:
            return read(session)
        known = session.__dict__.setdefault("_remembered", {})
        changes = connection.total_changes()
        if known.get(read, (None,))[0] != changes:
            known[read] = changes, read(session)
        return dict(known[read][1])

    return read_once
