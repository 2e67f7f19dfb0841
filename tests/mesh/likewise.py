"""A node as other software that knows Likewise v0.1 would be one: it encodes and decodes by the tables of
docs/wire-format.md, keeps its own clock, signs with a library of its own, and speaks plain HTTP to `/ops`. It shares no
code with Hocket. A payload numbered from 1024 on is unknown to it, and reading stops there, as the document says.
"""

import base64
import http.client
import json
import secrets
import struct
import time
from typing import Any

from blake3 import blake3
from nacl.signing import SigningKey

from tests.kernel.second import CHOICES, PARTS, UNIONS, VARIANTS, Fields, arguments, put_payload, put_unsigned, varint

# From the page on the wire format.
RULES_HASH = "5f1d8b45ab0b837306daa001387428ddfdc10d289b9decd5b01b3d80f0224e50"
BY_NUMBER = {number: (name, fields) for name, (number, fields) in VARIANTS.items() if number < 1024}
Op = dict[str, Any]


def base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class Reading:
    """Bytes from the front to the end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        assert self.at + count <= len(self.data)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        byte = self.take(1)[0]
        return byte if byte < 128 else byte - 128 + 128 * self.number()

    def value(self, kind: str) -> Any:
        if kind in ("u32", "u64", "node") or kind in CHOICES:
            return self.number()
        if kind == "f64":
            return struct.unpack("<d", self.take(8))[0]
        if kind == "bool":
            return self.take(1) == b"\x01"
        if kind == "str":
            return self.take(self.number()).decode()
        if kind == "bytes":
            return self.take(self.number()).hex()
        if kind in ("ulid", "hash"):
            return self.take(16 if kind == "ulid" else 32).hex()
        if kind in UNIONS:
            number = self.number()
            member, fields = next((m, f) for m, (n, f) in UNIONS[kind].items() if n == number)
            return {"type": member} | self.fields(fields)
        if kind in PARTS:
            return self.fields(PARTS[kind])
        inner = arguments(kind)
        if kind.startswith("option("):
            return self.value(inner[0]) if self.take(1) == b"\x01" else None
        if kind.startswith("seq("):
            return [self.value(inner[0]) for _ in range(self.number())]
        return [self.value(each) for each in inner]

    def fields(self, fields: Fields) -> dict[str, Any]:
        return {name: self.value(kind) for name, kind in fields}

    def op(self) -> Op:
        op: Op = {"id": self.value("ulid"), "schema_version": self.value("u32")}
        op |= {"timestamp": [self.number(), self.number(), self.number()], "node_id": self.number()}
        op["causal_deps"] = self.value("seq(ulid)")
        number = self.number()
        assert number in BY_NUMBER, f"payload {number} is no part of Likewise v0.1"
        name, fields = BY_NUMBER[number]
        op["payload"] = {"type": name} | self.fields(fields)
        op["signature"] = self.value("option(bytes)")
        return op


def batch(data: bytes) -> list[Op]:
    reading = Reading(data)
    ops = [reading.op() for _ in range(reading.number())]
    assert reading.at == len(data)
    return ops


class Other:
    """`address` is that of the one server that it knows, and `server` that server's node id."""

    def __init__(self, address: str, server: int) -> None:
        self._key = SigningKey.generate()
        self.public = bytes(self._key.verify_key)
        self.node = int.from_bytes(blake3(self.public).digest(8), "big")
        self._host, self._server = address.partition("//")[2], str(server)
        self._clock = (0, 0)
        self._since = base64url(b"\x00").decode()
        self.log: list[Op] = []
        self.unsent: list[bytes] = []

    def say(self, type: str, deps: tuple[str, ...] = (), **payload: Any) -> Op:
        """Writes an op; `send` sends it."""
        op = self._envelope(deps, {"type": type} | payload)
        self._sign(put_unsigned(op))
        self.log.append(op)
        return op

    def say_unknown(self, number: int, content: bytes, is_signed: bool = True) -> None:
        """Writes an op with a payload of a later version; `is_signed` is whether its signature is good."""
        op = self._envelope((), {"type": "RouteKind", "kind": "", "route": None})
        head = put_unsigned(op)[: -len(put_payload(op["payload"]))]
        self._sign(head + varint(number) + content, is_signed)

    def _envelope(self, deps: tuple[str, ...], payload: Op) -> Op:
        wall, logical = self._clock
        now = int(time.time() * 1000)
        self._clock = (now, 0) if now > wall else (wall, logical + 1)
        return {
            "id": (self._clock[0].to_bytes(6, "big") + secrets.token_bytes(10)).hex(),
            "schema_version": 1,
            "timestamp": [*self._clock, self.node],
            "node_id": self.node,
            "causal_deps": list(deps),
            "payload": payload,
        }

    def _sign(self, body: bytes, is_signed: bool = True) -> None:
        header = base64url(b'{"alg":"EdDSA","kid":"node-%d"}' % self.node)
        signature = self._key.sign(body + b"\x00").signature if is_signed else bytes(64)
        jws = header + b".." + base64url(signature)
        self.unsent.append(body + b"\x01" + varint(len(jws)) + jws)

    def wait(self, ms: int) -> None:
        """Sets its clock ahead."""
        self._clock = (max(self._clock[0], int(time.time() * 1000)) + ms, 0)

    def send(self) -> dict[str, int]:
        """POST /ops, with all that was written since the last time."""
        ops, self.unsent = self.unsent, []
        _, _, answer = self._ask("POST", "/ops", varint(len(ops)) + b"".join(ops))
        counts: dict[str, int] = json.loads(answer)
        return counts

    def tell(self, type: str, deps: tuple[str, ...] = (), **payload: Any) -> Op:
        """Writes an op, sends it, and sees to it that it was taken in."""
        op = self.say(type, deps, **payload)
        counts = self.send()
        assert (counts["appended"], counts["duplicated"], counts["rejected"]) == (1, 0, 0), counts
        return op

    def pull(self, limit: int = 3) -> list[Op]:
        """GET /ops, page by page, until the frontier stands still. Gives what is new."""
        found: list[Op] = []
        while True:
            _, headers, body = self._ask("GET", f"/ops?since={self._since}&limit={limit}")
            assert headers["content-type"] == "application/octet-stream"
            ops = batch(body)
            assert len(ops) <= limit
            for op in ops:
                wall, logical = self._clock
                self._clock = max((wall, logical), (op["timestamp"][0], op["timestamp"][1] + 1))
            found += ops
            following = headers["x-likewise-next-frontier"]
            if following == self._since:
                break
            self._since = following
        known = {(op["node_id"], op["id"]) for op in self.log}
        new = [op for op in found if (op["node_id"], op["id"]) not in known]
        self.log += new
        return new

    def _ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        now = int(time.time())
        claims = {"aud": self._server, "exp": now + 60, "iat": now, "iss": str(self.node), "nonce": secrets.token_hex()}
        signed = (
            base64url(b'{"alg":"EdDSA","kid":"node-%d"}' % self.node)
            + b"."
            + base64url(json.dumps(claims, separators=(",", ":")).encode())
        )
        token = signed + b"." + base64url(self._key.sign(signed).signature)
        headers = {"Authorization": f"Bearer {token.decode()}", "X-Likewise-Mesh-Rules-Hash": RULES_HASH}
        if body:
            headers["Content-Type"] = "application/octet-stream"
        connection = http.client.HTTPConnection(self._host, timeout=30)
        try:
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            assert answer.status == 200, answer.status
            assert told["x-likewise-mesh-rules-hash"] == RULES_HASH
            return answer.status, told, answer.read()
        finally:
            connection.close()
