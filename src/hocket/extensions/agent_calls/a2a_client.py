"""A client of the Agent2Agent protocol 1.0 over JSON-RPC. It blocks, follows no redirect, and sends an agent's token
only to the place that the owner has named.
"""

import http.client
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec

from hocket.errors import Failed, HocketError, NotAuthorised, Unreachable
from hocket.extensions.agent_calls.agent_file import ForeignAgent
from hocket.kernel.decoding import decode_json

CARD_PATH = "/.well-known/agent-card.json"
VERSION = "1.0"
# How long each step of a request may take, and the longest answer.
STEP_S = 30.0
ANSWER_BYTES_MAX = 8 * 1024 * 1024
_INTERNAL = -32603


class Interface(NamedTuple):
    """What a card says: the agent's name, its skills, and the path of its calls."""

    name: str
    skills: tuple[str, ...]
    path: str


class AgentRefused(Failed):
    """The agent has answered a call with an error that stays the same if the call is made again."""


class A2aClient:
    def __init__(self, agent: ForeignAgent) -> None:
        self._agent, self._where = agent, urlsplit(agent.url)

    def interface(self) -> Interface:
        """Reads the agent's card. Raises Unreachable, and AgentRefused for an agent that this program cannot call."""
        path = self._where.path if self._where.path.endswith(".json") else self._where.path.rstrip("/") + CARD_PATH
        card = self._request("GET", path, None)
        interfaces = _list(card, "supportedInterfaces")
        found = next((each for each in interfaces if _is_ours(each)), None)
        if found is None:
            raise AgentRefused(f"the card of {self._agent.name} has no interface JSONRPC of the protocol {VERSION}")
        try:
            target = urlsplit(str(found.get("url", "")))
            is_same = _origin(target) == _origin(self._where)
        except ValueError:
            is_same = False
        if not is_same:
            raise AgentRefused(f"the card of {self._agent.name} names another server, {found.get('url')!r}; add that")
        skills = tuple(str(each.get("id", "")) for each in _list(card, "skills"))
        return Interface(str(card.get("name", "")), skills, target.path or "/")

    def call(self, path: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a call. Raises Unreachable if it may be made again, and AgentRefused if not."""
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        answer = self._request("POST", path, body)
        error = answer.get("error")
        if isinstance(error, dict):
            sentence = f"{self._agent.name} answered {method} with {error.get('code')}: {error.get('message')}"
            raise Unreachable(sentence) if error.get("code") == _INTERNAL else AgentRefused(sentence)
        result = answer.get("result")
        if not isinstance(result, dict):
            raise AgentRefused(f"{self._agent.name} answered {method} with no result of the protocol")
        return result

    def _request(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        name, where = self._agent.name, self._where
        headers = {"accept": "application/json", "a2a-version": VERSION, "user-agent": "hocket"}
        if body is not None:
            headers["content-type"] = "application/json"
            if self._agent.token:
                headers["authorization"] = f"Bearer {self._agent.token}"
        connection = _connection(where)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            content = reply.read(ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{name} at {where.netloc} does not answer: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if reply.status != 200:
            raise _refusal(name, reply.status)
        if len(content) > ANSWER_BYTES_MAX:
            raise AgentRefused(f"{name} answered more than {ANSWER_BYTES_MAX} bytes")
        try:
            return decode_json(content, dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise AgentRefused(f"{name} at {where.netloc} answered with no JSON object; is it an agent?") from None


def _refusal(name: str, status: int) -> HocketError:
    if status in (401, 403):
        return NotAuthorised(f"{name} does not take the token: status {status}; add the agent again with another")
    sentence = f"{name} answered with status {status}"
    return Unreachable(sentence) if status in (408, 425, 429) or status >= 500 else AgentRefused(sentence)


def _connection(where: SplitResult) -> http.client.HTTPConnection:
    host = where.hostname or ""
    if where.scheme == "https":
        return http.client.HTTPSConnection(host, where.port, timeout=STEP_S, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, where.port, timeout=STEP_S)


def _origin(where: SplitResult) -> tuple[str, str, int]:
    return where.scheme, where.hostname or "", where.port or {"http": 80}.get(where.scheme, 443)


def _is_ours(interface: Mapping[str, Any]) -> bool:
    version = str(interface.get("protocolVersion", ""))
    return interface.get("protocolBinding") == "JSONRPC" and version.split(".")[0] == VERSION.split(".")[0]


def _list(card: Mapping[str, Any], member: str) -> list[dict[str, Any]]:
    found = card.get(member)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
