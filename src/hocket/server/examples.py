"""An example for every request and answer of the description, made from their schemas: the words that our guides use
where a name says what a value is, and else the smallest value that the schema allows.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

_DEPTH_MAX = 8
_ULID = "01K46AFQ2FBVHSTJ5BFM2XAD52"
_NODE = "9f86d081884c7d65"
_MOMENT_MS = 1_756_865_547_183
# What a member of a request or an answer of this name is, if its schema allows it.
_WORDS: Mapping[str, Any] = {
    **{name: _ULID for name in ("id", "job", "job_id", "message", "artifact", "artifact_id", "op", "worker")},
    **{name: _NODE for name in ("node", "claimer", "author", "coordinator")},
    **{"kind": "acme.render", "kinds": ["acme."], "agent": "ci", "name": "gpu-box", "holder": "gpu-box", "to": "ci"},
    **{
        "key": "file:src/lib.rs",
        "keys": ["file:src/lib.rs"],
        "table": "memories",
        "row": "ada",
        "reason": "not needed",
    },
    **{"payload": {"frame": 7}, "result": {"frame": 7}, "value": {"born": 1815}, "body": "please build"},
    **{
        "fence": 7,
        "attempt": 1,
        "state": "running",
        "mode": "exclusive",
        "type": "note",
        "at": "2025-09-03T02:12:27.183Z",
    },
    **{"hash": "blake3:" + "af" * 32, "url": "https://example.org/hook", "error": "out of memory", "tag": "nightly"},
    **{"time": "2025-09-03T02:12:27.183Z+17", "claim_id": "w1-0001"},
}
# Members that end in `_ms` and are points in time. The others are durations.
_MOMENTS = re.compile(
    r"(^|_)(at|since|until|made|used|sent|expires|revoked|ended|began|begun|started|seen|submitted|not_before|deadline"
    r"|next|last|due|created|updated|finished|claimed|wall|acquired|written|time)_ms$"
)


class Examples:
    """Makes examples for schemas that refer to these components."""

    def __init__(self, components: Mapping[str, Json]) -> None:
        self._components = components

    def of(self, schema: Json, name: str = "", is_request: bool = False) -> Any:
        return self._of(schema, name, is_request, 0)

    def _of(self, schema: Json, name: str, is_request: bool, depth: int) -> Any:
        if "$ref" in schema:
            return self._of(self._components[schema["$ref"].rpartition("/")[2]], name, is_request, depth)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                choices = [each for each in schema[keyword] if each.get("type") != "null"]
                return self._of(choices[0], name, is_request, depth) if choices and depth < _DEPTH_MAX else None
        if "enum" in schema:
            return _WORDS[name] if _WORDS.get(name) in schema["enum"] else schema["enum"][0]
        if "const" in schema:
            return schema["const"]
        kind = schema.get("type")
        kind = next((each for each in kind if each != "null"), None) if isinstance(kind, list) else kind
        if kind == "object":
            return self._object(schema, name, is_request, depth)
        if kind == "array":
            return self._array(schema, name, is_request, depth)
        if kind in ("integer", "number"):
            return _number(schema, name)
        if kind == "string":
            return _text(schema, name)
        return False if kind == "boolean" else None if kind == "null" else _WORDS.get(name, {"frame": 7})

    def _object(self, schema: Json, name: str, is_request: bool, depth: int) -> Any:
        if "properties" not in schema:
            word = _WORDS.get(name)
            return word if isinstance(word, dict) and schema.get("additionalProperties", True) in (True, {}) else {}
        required = schema.get("required", ())
        members = {
            each: of
            for each, of in schema["properties"].items()
            if each in required or (not is_request and depth < 2) or (is_request and each in ("payload", "ttl_ms"))
        }
        return {each: self._of(of, each, is_request, depth + 1) for each, of in members.items()}

    def _array(self, schema: Json, name: str, is_request: bool, depth: int) -> Any:
        word, items = _WORDS.get(name), schema.get("items", {})
        if "prefixItems" in schema:
            return [self._of(each, "", is_request, depth + 1) for each in schema["prefixItems"]]
        if isinstance(word, list) and items.get("type") == "string":
            return word
        if depth >= _DEPTH_MAX and not schema.get("minItems"):
            return []
        return [self._of(items, name.removesuffix("s"), is_request, depth + 1)]


def _number(schema: Json, name: str) -> Any:
    least, most = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1), schema.get("maximum")
    word = _WORDS.get(name)
    value = word if isinstance(word, int) else 1
    if name.endswith("_ms"):
        value = _MOMENT_MS if _MOMENTS.search(name) else 30_000
    value = max(value, least)
    return value if most is None else min(value, most)


def _text(schema: Json, name: str) -> str:
    if schema.get("contentEncoding") == "base64":
        return "aGVsbG8="
    word = _WORDS.get(name)
    candidates: Sequence[str] = (*((word,) if isinstance(word, str) else ()), _ULID, _NODE, name or "text", "1.0", "a")
    least, most = schema.get("minLength", 0), schema.get("maxLength", 1 << 30)
    fitting = (
        each
        for each in candidates
        if least <= len(each) <= most and ("pattern" not in schema or re.search(schema["pattern"], each))
    )
    if isinstance(word, str) or "pattern" in schema:
        return next(fitting, "a" * least)
    return name if least <= len(name) <= most and name else "a" * max(1, least)
