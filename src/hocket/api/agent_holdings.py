"""What agents hold according to the log: locks that they hold or wait for, and messages that they read. Agents never
say it themselves.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hocket.families.inbox.rules import read_address
from hocket.families.locks.decisions import read_scope, subject
from hocket.families.locks.facts import LOCK, RenewLocks
from hocket.families.locks.requests import moment
from hocket.families.locks.rules import Agent, Hold, live
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.ids import ulid_ms
from hocket.kernel.ops import decode
from hocket.kernel.texts import counted
from hocket.store import OpRow, Session

# How many locks of an agent, keys of a lock and kinds of a worker are shown.
SHOWN = 3
# How many leased messages are looked at.
MESSAGES_MAX = 10_000


class AgentHolding(NamedTuple):
    """A lock or messages of an agent. The agent was last seen when it asked or renewed, and has time until `until_ms`
    to do so again.
    """

    doing: str
    seen_ms: int
    until_ms: int


Holdings = Mapping[Agent, Sequence[AgentHolding]]


def lock_holdings(session: Session, now_ms: int) -> Holdings:
    found: defaultdict[Agent, list[AgentHolding]] = defaultdict(list)
    for key in sorted(session.subjects_since(LOCK, b"")):
        scope = key.decode()
        state = read_scope(session, scope)
        if state is None:
            continue
        where, holds = f" in {scope}" if scope else "", live(state, now_ms)
        since = pack(Hlc(min((hold.since for hold in holds), default=now_ms), 0, 0))
        ops = session.ops_about(subject(scope), after=since) if holds else []
        for hold in holds:
            doing = f"holds {few(hold.keys)}{where} until {moment(hold.deadline)}"
            found[hold.node, hold.agent].append(AgentHolding(doing, _renewed(hold, ops), hold.deadline))
        for wait in state.waits:
            if wait.until >= now_ms:
                doing = f"waits for {few(wait.keys)}{where}"
                found[wait.node, wait.agent].append(AgentHolding(doing, ulid_ms(wait.op), wait.until))
    return found


def message_holdings(session: Session, now_ms: int) -> Holdings:
    leases: defaultdict[Agent, list[tuple[int, int]]] = defaultdict(list)
    for row in session.deliveries_resting(MESSAGES_MAX):
        message, address = session.message(row.message_id), read_address(row.queue)
        assert message is not None and address is not None
        delivery = message.delivery(address.name, address.node or 0)
        if delivery.is_held(now_ms) and delivery.op is not None:
            leases[delivery.node, delivery.agent].append((ulid_ms(delivery.op), delivery.until))
    return {
        agent: [AgentHolding(f"reads {counted(len(each), 'message')}", max(each)[0], max(until for _, until in each))]
        for agent, each in leases.items()
    }


def few(texts: Sequence[str], between: str = ", ") -> str:
    return between.join((*texts[:SHOWN], *(["…"] if len(texts) > SHOWN else [])))


def _renewed(hold: Hold, ops: Iterable[OpRow]) -> int:
    """When its holder last asked for the lock or renewed it. `ops` are those about its scope."""
    for row in sorted(ops, key=lambda row: row.hlc, reverse=True):
        at = unpack(row.hlc)
        if at.wall < hold.since:
            break
        payload = decode(row.body).payload if at.node == hold.node else None
        if isinstance(payload, RenewLocks) and (payload.agent, payload.fence) == (hold.agent, hold.fence):
            return at.wall
    return hold.since
