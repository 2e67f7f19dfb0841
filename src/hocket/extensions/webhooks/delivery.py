"""One delivery: a signed POST of an event to a webhook's URL. It follows the Standard Webhooks: the receiver checks the
signature over id, time and body with the webhook's secret, and knows a repetition by its id.
"""

import base64
import hmac
import http.client
import os
import ssl
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from hocket.errors import Failed, Unreachable, Usage
from hocket.extensions.webhooks.addresses import AllowList, Target, connected, read_url
from hocket.work.handler_errors import Fatal

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
# How long each step of a delivery may take: to connect, to send, to answer.
STEP_S = 10.0
ANSWER_BYTES = 512


class Sent(NamedTuple):
    """What a receiver has answered."""

    status: int
    text: str


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(os.urandom(SECRET_BYTES)).decode()


def signature(secret: str, id: str, time_s: int, body: bytes) -> str:
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        raise Usage("the secret of the webhook is damaged; remove the webhook and add it again") from None
    signed = f"{id}.{time_s}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()}"


def deliver(url: str, secret: str, allowed: AllowList, id: str, event: Any, time_s: int) -> Sent:
    """Raises Fatal if the receiver wants no more, Failed if it did not take the event, Unreachable, and NotAuthorised
    for an address that the owner has not allowed.
    """
    target, body = read_url(url), msgspec.json.encode(event)
    headers = {
        "content-type": "application/json",
        "user-agent": "hocket",
        "connection": "close",
        "webhook-id": id,
        "webhook-timestamp": str(time_s),
        "webhook-signature": signature(secret, id, time_s, body),
    }
    connection = _GuardedConnection(target, allowed)
    try:
        connection.request("POST", target.path, body, headers)
        answer = connection.getresponse()
        sent = Sent(answer.status, answer.read(ANSWER_BYTES).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException, ssl.SSLError) as error:
        raise Unreachable(f"{target.host} did not take it: {type(error).__name__}: {error}") from None
    finally:
        connection.close()
    if sent.status == HTTPStatus.GONE:
        raise Fatal(f"{target.host} answered 410: it wants no more; remove the webhook")
    if 300 <= sent.status < 400:
        raise Failed(f"{target.host} answered {sent.status}; redirects are not followed; give the URL where it leads")
    if not 200 <= sent.status < 300:
        raise Failed(f"{target.host} answered {sent.status}: {sent.text[:200]!r}")
    return sent


class _GuardedConnection(http.client.HTTPConnection):
    """Connects to addresses that are allowed. It uses no proxy."""

    def __init__(self, target: Target, allowed: AllowList) -> None:
        super().__init__(target.host, target.port, timeout=STEP_S)
        self._target, self._allowed = target, allowed
        self.default_port = {"http": 80, "https": 443}[target.scheme]

    def connect(self) -> None:
        # It is closed with the connection, also if the handshake fails.
        self.sock = connected(self._target, self._allowed, STEP_S)
        if self._target.scheme == "https":
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self._target.host)
