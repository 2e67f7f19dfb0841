"""A client of the protocol over plain HTTP, for a server with two skills."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.server.served import PATIENCE_S, Answer, Served
from tests.server.test_coordination_routes import Client
from tests.server.test_worker_routes import Worker

KIND, OTHER_KIND = "acme.review", "acme.translate"
VERSION = {"A2A-Version": "1.0"}
AT_ONCE = {"returnImmediately": True}


def message(id: str, *parts: Any, skill: str = KIND, **more: Any) -> dict[str, Any]:
    shown = parts or ({"data": {"file": "a.py"}},)
    return {"messageId": id, "role": "ROLE_USER", "parts": [*shown], "metadata": {"skill": skill}, **more}


class A2aClient(Client):
    def post(self, method: str, params: Any, **headers: str) -> Answer:
        return self("POST", "/a2a", _call(method, params), **{"A2A_Version": "1.0", **headers})

    def ask(self, method: str, params: Any) -> Any:
        """The result of a call."""
        answer = self.post(method, params)
        assert answer.status == 200 and "result" in answer.json, answer.body
        return answer.json["result"]

    def refusal(self, method: str, params: Any) -> dict[str, Any]:
        """The error of a call."""
        answer = self.post(method, params)
        assert answer.status == 200 and "error" in answer.json, answer.body
        error: dict[str, Any] = answer.json["error"]
        return error

    def send(self, id: str, *parts: Any, **more: Any) -> dict[str, Any]:
        """The new task of a message."""
        sent = {"message": message(id, *parts, **more), "configuration": AT_ONCE}
        task: dict[str, Any] = self.ask("SendMessage", sent)["task"]
        return task

    @contextmanager
    def stream(self, method: str, params: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a stream, which must end in time: a server keeps a quiet one open with empty lines."""
        where = urlsplit(self._served.address)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **VERSION}
        try:
            connection.request("POST", "/a2a", json.dumps(_call(method, params)), headers)
            reply = connection.getresponse()
            assert reply.getheader("content-type") == "text/event-stream", reply.read()
            yield _events(reply, time.monotonic() + PATIENCE_S)
        finally:
            connection.close()


def _events(reply: http.client.HTTPResponse, deadline: float) -> Iterator[dict[str, Any]]:
    for line in iter(reply.readline, b""):
        assert time.monotonic() < deadline, f"the stream has not ended within {PATIENCE_S} seconds"
        if line.startswith(b"data: "):
            yield json.loads(line[6:])["result"]


def _call(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "r1", "method": method, "params": params}


def state(task: dict[str, Any]) -> str:
    found: str = task["status"]["state"]
    return found.removeprefix("TASK_STATE_")


def worker(served: Served, name: str, kind: str = KIND) -> Worker:
    return Worker(Client(served, name, "all"), kind)
