"""Writes the JSON Schema files of the messages from their types: `python -m tests.extensions.tempo.beats.schemas`."""

import json
from pathlib import Path
from typing import Any

import msgspec

import hocket
from hocket.extensions.tempo.messages import MESSAGES


def message_schema(kind: type) -> dict[str, Any]:
    schema: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(kind)))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


if __name__ == "__main__":
    for kind in MESSAGES:
        file = Path(hocket.__file__).parent / "extensions" / "tempo" / "schemas" / f"{kind.__name__}.json"
        file.write_text(json.dumps(message_schema(kind), indent=2) + "\n")
