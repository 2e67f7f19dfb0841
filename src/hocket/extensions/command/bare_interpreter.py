"""Starts functions of this package on a bare interpreter, without installed packages: it starts quickly, and is small
enough to fork cheaply.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOMS = {"hocket": _HERE.parent.parent, "hocket.work": _HERE.parent, "hocket.extensions.command": _HERE}
# Empty stand-ins for the packages of the module: the real ones would import all of Hocket.
_BEGIN = """
import sys
for name, path in zip(sys.argv[2:8:2], sys.argv[3:8:2]):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [path]
__import__(sys.argv[1], fromlist=["main"]).main(*sys.argv[8:])
"""


def bare_interpreter(module: str, *arguments: str) -> list[str]:
    """The words that run `main` of a module of this package with these arguments."""
    rooms = [text for name, path in _ROOMS.items() for text in (name, str(path))]
    return [sys.executable, "-I", "-S", "-c", _BEGIN, f"hocket.extensions.command.{module}", *rooms, *arguments]
