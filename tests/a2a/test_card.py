"""The agent card: what it says, who signed it, and that it is not there unless the owner asked for it."""

import json

import rfc8785

from hocket.kernel.jws import base64url, from_base64url
from hocket.kernel.keys import verify
from tests.a2a.clients import KIND, OTHER_KIND
from tests.mcp.agents import new_home
from tests.server.served import Served, serving

CARD = "/.well-known/agent-card.json"


def test_the_card_names_the_skills_and_has_all_that_the_protocol_wants(served: Served):
    answer = served.ask("GET", CARD)
    card = answer.json
    assert [each["id"] for each in card["skills"]] == [KIND, OTHER_KIND]
    assert card["name"] == "box" and card["supportedInterfaces"] == [
        {"url": f"{served.address}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ]
    for member in ("description", "version", "capabilities", "defaultInputModes", "defaultOutputModes"):
        assert card[member], member
    assert all(each[member] for each in card["skills"] for member in ("name", "description", "tags"))
    assert "max-age" in answer.headers["cache-control"]
    again = served.ask("GET", CARD, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert served.ask("POST", CARD, body={}).status == 405


def test_the_nodes_key_signed_the_card(served: Served):
    card = served.ask("GET", CARD).json
    (signature,) = card.pop("signatures")
    head = json.loads(from_base64url(signature["protected"].encode()))
    assert (head["alg"], head["typ"]) == ("EdDSA", "JOSE")
    assert head["jku"].startswith(served.address)
    keys = served.ask("GET", head["jku"].removeprefix(served.address)).json["keys"]
    (key,) = (each for each in keys if each["kid"] == head["kid"])
    public = from_base64url(key["x"].encode())

    def is_signed(content: object) -> bool:
        signed = signature["protected"].encode() + b"." + base64url(rfc8785.dumps(content))  # type: ignore[arg-type]
        return verify(public, from_base64url(signature["signature"].encode()), signed)

    assert is_signed(card)
    assert not is_signed({**card, "name": "another"})


def test_a_server_that_was_not_asked_has_no_card(tmp_path_factory):
    with serving(new_home(tmp_path_factory.mktemp("silent"))) as silent:
        assert silent.ask("GET", CARD).status == 404
        assert silent.ask("POST", "/a2a", body={}).status == 404
