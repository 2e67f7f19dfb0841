"""Requests that are wrong, huge or deep get the errors of the protocol, and change nothing."""

import json
from typing import Any

import pytest

from tests.a2a.clients import AT_ONCE, KIND, A2aClient, message
from tests.server.served import Served


def raw(client: A2aClient, body: bytes) -> Any:
    answer = client("POST", "/a2a", body, A2A_Version="1.0", Content_Type="application/json")
    assert answer.status == 200, answer.body
    return answer.json


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"GetTask"}', -32600),
        (b'{"jsonrpc":"2.0","method":"GetTask"}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"GetTask"}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"GetTask"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{}}', -32601),
        (b"[" * 100_000, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":' + b"[" * 70 + b"]" * 70 + b"}", -32600),
    ],
)
def test_what_is_no_request_is_refused(ann: A2aClient, body: bytes, code: int):
    assert raw(ann, body)["error"]["code"] == code


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"messageId": 7}, -32602, "message.messageId"),
        ({"messageId": ""}, -32602, "message.messageId"),
        ({"messageId": "m" * 257}, -32602, "message.messageId"),
        ({"role": "ROLE_AGENT"}, -32602, "message.role"),
        ({"parts": []}, -32602, "message.parts"),
        ({"parts": [{"text": "x"}] * 65}, -32602, "message.parts"),
        ({"parts": [{}]}, -32602, "message.parts[0]"),
        ({"parts": [{"text": "x", "data": {}}]}, -32602, "message.parts[0]"),
        ({"parts": [{"data": [1]}]}, -32602, "message.parts[0].data"),
        ({"parts": [{"data": {}}, {"data": {}}]}, -32602, "message.parts[1].data"),
        ({"parts": [{"data": {"text": "x"}}, {"text": "y"}]}, -32602, "message.parts"),
        ({"parts": [{"raw": "AAAA"}]}, -32005, None),
        ({"parts": [{"url": "https://example.com/a"}]}, -32005, None),
        ({"parts": [{"text": "x", "mediaType": "text/html"}]}, -32005, None),
        ({"metadata": {"skill": "acme.secret"}}, -32602, "message.metadata.skill"),
        ({"metadata": {"skill": [KIND]}}, -32602, "message.metadata.skill"),
        ({"metadata": {}}, -32602, "message.metadata.skill"),
        ({"metadata": 7}, -32602, "message.metadata"),
        ({"contextId": "a b"}, -32602, "message.contextId"),
        ({"contextId": "c" * 81}, -32602, "message.contextId"),
        ({"taskId": "../x"}, -32001, None),
        ({"taskId": "01M7T55QEBTNPKZBVRTQ5Z51DG"}, -32001, None),
    ],
)
def test_a_wrong_message_is_refused_and_makes_no_task(ann: A2aClient, change: dict[str, Any], code: int, field: str):
    before = ann.ask("ListTasks", {})["totalSize"]
    sent = {"message": {**message("hostile"), **change}, "configuration": AT_ONCE}
    error = ann.refusal("SendMessage", sent)
    assert error["code"] == code, error
    if field is not None:
        assert error["data"][0]["fieldViolations"][0]["field"] == field
    assert ann.ask("ListTasks", {})["totalSize"] == before


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("SendMessage", {}, -32602),
        ("SendMessage", [], -32602),
        ("SendMessage", None, -32602),
        ("SendMessage", {"message": message("x"), "configuration": {"historyLength": -1}}, -32602),
        ("SendMessage", {"message": message("x"), "configuration": {"taskPushNotificationConfig": {}}}, -32003),
        ("GetTask", {}, -32602),
        ("GetTask", {"id": 7}, -32602),
        ("GetTask", {"id": ""}, -32001),
        ("GetTask", {"id": "01M7"}, -32001),
        ("GetTask", {"id": "x" * 100_000}, -32001),
        ("ListTasks", {"pageSize": 0}, -32602),
        ("ListTasks", {"pageSize": 101}, -32602),
        ("ListTasks", {"pageToken": "nonsense"}, -32602),
        ("ListTasks", {"status": "DONE"}, -32602),
        ("ListTasks", {"statusTimestampAfter": "yesterday"}, -32602),
        ("CancelTask", {"id": "01M7T55QEBTNPKZBVRTQ5Z51DG"}, -32001),
        ("CreateTaskPushNotificationConfig", {}, -32003),
        ("ListTaskPushNotificationConfigs", {}, -32003),
        ("GetExtendedAgentCard", {}, -32004),
        ("__init__", {}, -32601),
    ],
)
def test_a_wrong_call_is_refused(ann: A2aClient, method: str, params: Any, code: int):
    error = ann.refusal(method, params)
    assert error["code"] == code and len(json.dumps(error)) < 2_000, error


def test_only_version_1_0_is_spoken(ann: A2aClient):
    call = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    for version in ("", "0.3", "1.1", "2.0"):
        assert ann("POST", "/a2a", call, A2A_Version=version).json["error"]["code"] == -32009, version
    assert ann("POST", "/a2a", call).json["error"]["code"] == -32009
    assert "result" in ann("POST", "/a2a", call, A2A_Version="1.0.1").json
    assert "result" in ann("POST", "/a2a?A2A-Version=1.0", call).json


def test_nobody_without_a_token_and_no_foreign_page_is_answered(served: Served, ann: A2aClient):
    call = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    assert served.ask("POST", "/a2a", None, call).status == 401
    assert served.ask("POST", "/a2a", "hkt_000000000000_" + "A" * 43, call).headers["www-authenticate"] == "Bearer"
    assert ann("GET", "/a2a").status == 405
    foreign = ann("POST", "/a2a", call, A2A_Version="1.0", Origin="https://evil.example")
    assert foreign.status == 403 and b"evil.example" in foreign.body
    assert "result" in ann("POST", "/a2a", call, A2A_Version="1.0", Origin=served.address).json
    assert served.ask("GET", "/.well-known/agent-card.json", headers={"Origin": "https://evil.example"}).status == 200
    assert ann("POST", "/a2a", b"x" * 5_000_000).status == 413
