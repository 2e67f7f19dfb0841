"""One measurement of one subject, in this process: `python -m bench.measure SUBJECT FUNCTION JSON-ARGUMENTS`.

The last line printed is the result. The harness starts this anew for each figure.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main() -> int:
    name, function, text = sys.argv[1:4]
    arguments = json.loads(text)
    if "home" in arguments:
        arguments["home"] = Path(arguments["home"])
    result = getattr(importlib.import_module(name), function)(**arguments)
    print("\n" + json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
