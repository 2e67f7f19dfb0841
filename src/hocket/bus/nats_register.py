"""A value on a NATS server that only one of several writers can change at a time: each change names the revision that
it replaces, and the server refuses it if there is a newer one. It is the last message of a subject in a JetStream
stream. Revisions are the stream's sequence numbers, which never repeat while the server keeps its data.
"""

import asyncio
import hashlib
from typing import NamedTuple

import nats.errors
import nats.js.errors
from nats.js import api

from hocket.bus.messages import subject_name
from hocket.bus.nats_messages import NatsClient, NatsMessages, make_stream
from hocket.cancelling import cancellable
from hocket.errors import Unreachable

PREFIX = "register"
ANSWER_S = 2.0
_WRONG_SEQUENCE = 10071
_FAILURES = (nats.errors.Error, OSError, asyncio.TimeoutError, TimeoutError)


class Entry(NamedTuple):
    revision: int
    data: bytes


NOTHING = Entry(0, b"")


class NatsRegister:
    """`mesh` and `name` say which value it is."""

    def __init__(self, messages: NatsMessages, mesh: str, name: str) -> None:
        self._messages, self.name = messages, name
        self.subject = f"{PREFIX}.{subject_name(mesh, PREFIX, name)}"
        self._pattern = f"{PREFIX}.{messages.root}.>" if messages.root else f"{PREFIX}.>"
        self._stream = f"hocket-{PREFIX}-{hashlib.sha256(messages.root.encode()).hexdigest()[:16]}"
        self._made_with: NatsClient | None = None

    async def read(self) -> Entry:
        """NOTHING if the value was never set. Raises Unreachable."""
        client = self._client()
        try:
            found = await cancellable(client.jsm(timeout=ANSWER_S).get_last_msg(self._stream, self.subject))
        except nats.js.errors.NotFoundError:
            return NOTHING
        except _FAILURES as error:
            raise self._unreachable(error) from None
        return Entry(found.seq or 0, found.data or b"")

    async def swap(self, revision: int, data: bytes) -> int | None:
        """Replaces the value of this revision. Returns the new revision; None if there is a newer one. Raises
        Unreachable: then the value may have been replaced, or not.
        """
        client = await self._with_stream()
        headers = {api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(revision)}
        try:
            publishing = client.jetstream(timeout=ANSWER_S).publish(
                self.subject, data, timeout=ANSWER_S, stream=self._stream, headers=headers
            )
            done = await cancellable(publishing)
        except nats.js.errors.APIError as error:
            if error.err_code == _WRONG_SEQUENCE:
                return None
            raise self._unreachable(error) from None
        except _FAILURES as error:
            raise self._unreachable(error) from None
        return done.seq

    def _client(self) -> NatsClient:
        client = self._messages.client
        if client is None:
            raise Unreachable(f"the bus {self._messages.state.what} is away")
        return client

    async def _with_stream(self) -> NatsClient:
        client = self._client()
        if self._made_with is not client:
            config = api.StreamConfig(
                name=self._stream,
                subjects=[self._pattern],
                max_msgs_per_subject=1,
                discard=api.DiscardPolicy.OLD,
            )
            try:
                await cancellable(make_stream(client, config, ANSWER_S))
            except _FAILURES as error:
                raise self._unreachable(error) from None
            self._made_with = client
        return client

    def _unreachable(self, error: BaseException) -> Unreachable:
        detail = str(error).removeprefix("nats: ") or type(error).__name__
        return Unreachable(f"the bus {self._messages.state.what} keeps no register: {detail}")
