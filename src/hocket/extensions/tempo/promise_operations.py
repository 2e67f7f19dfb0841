"""Promises of help: answers to requests that another agent waits on."""

from hocket.api import Service
from hocket.api.inbox import MessageShown, find, send
from hocket.errors import Usage
from hocket.extensions.tempo.beats.messages import to_json
from hocket.extensions.tempo.promises import HELP_TYPE, PROMISE_TYPE, make_promise
from hocket.kernel.ids import parse_ulid
from hocket.node.inbox import message_data


def send_promise(
    service: Service,
    request: str,
    beats: int,
    fail_after: int | None,
    confidence: float,
    on_fail: str,
    agent: str = "",
) -> MessageShown:
    """Promises help to the sender of a request, which is known by the beginning of its id."""
    message_id = find(service, request)
    with service.read() as session:
        message = session.message(parse_ulid(message_id))
        assert message is not None
        data = message_data(service.runtime.log, session, message, None)
    if data.type != HELP_TYPE:
        raise Usage(f"message {message_id} asks for no help: its type is {data.type!r}, not {HELP_TYPE!r}")
    made = make_promise(message_id, beats, fail_after, confidence, on_fail)
    return send(service, data.sender_address, to_json(made), agent=agent, type=PROMISE_TYPE, reply_to=message_id)
