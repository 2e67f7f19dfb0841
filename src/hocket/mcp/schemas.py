"""JSON schemas of tools, as short as they can be: a model reads them with every request."""

from typing import Any

import msgspec

# What a model needs no word about.
_DROPPED = {"title", "minLength", "maxLength", "format", "pattern"}


def schema_of(struct: type[msgspec.Struct], *, is_input: bool) -> dict[str, Any]:
    """The schema of a struct, with everything in its place and no definitions. A member that may be null may be left
    out; then the null is not worth a word.
    """
    (schema,), definitions = msgspec.json.schema_components([struct], ref_template="{name}")
    found: dict[str, Any] = _short(schema, definitions)
    found.pop("description", None)
    if not is_input:
        found.pop("additionalProperties", None)
        for each in found["properties"].values():
            each.pop("default", None)
    if not found.get("required"):
        found.pop("required", None)
    return found


def _short(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_short(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        return _short({**definitions[schema["$ref"]], **rest}, definitions)
    if "anyOf" in schema:
        left = [each for each in schema["anyOf"] if each != {"type": "null"}]
        rest = {name: value for name, value in schema.items() if name != "anyOf"}
        merged = {**left[0], **rest} if len(left) == 1 else {**rest, "anyOf": left}
        if len(left) < len(schema["anyOf"]) or len(left) == 1:
            return _short(merged, definitions)
    found = {}
    for name, value in schema.items():
        if name == "properties":
            found[name] = {each: _short(one, definitions) for each, one in value.items()}
        elif name not in _DROPPED and not (name == "default" and not value):
            found[name] = _short(value, definitions)
    if "enum" in found:
        found.pop("type", None)
    return found
