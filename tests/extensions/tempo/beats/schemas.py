"""Writes the JSON Schema files of the messages from their types: `python -m tests.extensions.tempo.beats.schemas`."""

import json
from pathlib import Path

import hocket
from hocket.extensions.tempo.messages import MESSAGES, message_schema

if __name__ == "__main__":
    for kind in MESSAGES:
        file = Path(hocket.__file__).parent / "extensions" / "tempo" / "schemas" / f"{kind.__name__}.json"
        file.write_text(json.dumps(message_schema(kind), indent=2) + "\n")
