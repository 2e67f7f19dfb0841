"""Messages between agents."""

from collections.abc import Iterator
from typing import Any

import msgspec

from hocket.families.inbox.facts import MESSAGE, VARIANTS, ClaimMessage
from hocket.kernel.family import Family, OwnTable, Resource
from hocket.kernel.ids import ulid_text


def _rules() -> Any:
    from hocket.families.inbox.rules import MESSAGES

    return MESSAGES


def _projector() -> Any:
    from hocket.families.inbox.projector import MessageProjector

    return MessageProjector


def _read(session: Any, message_id: bytes) -> Any:
    return session.message(message_id)


def _states(session: Any) -> Iterator[bytes]:
    encoder = msgspec.msgpack.Encoder()
    return map(encoder.encode, session.each_message())


FAMILY = Family(
    MESSAGE,
    VARIANTS,
    lambda payload: payload.message_id,
    _rules,
    resource=Resource("Inbox", "receiver", "messages", {"claim": "Claim"}, written=frozenset({"Claim"})),
    projector=_projector,
    accepted=ClaimMessage,
    table=OwnTable("messages", _read, _states),
    claims=lambda message: () if message is None else {each.op for each in message.deliveries},
    key_text=lambda key: ulid_text(key) if len(key) == 16 else key.hex(),
)
