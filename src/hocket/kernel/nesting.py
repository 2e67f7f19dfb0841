"""How deep a JSON text is nested. Interpreters differ in the depth that they can read, and nodes must not differ about
what a text from another node means: so what is signed, and what is redacted, has a bound of our own.
"""

import re

NESTING_MAX = 64

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


def is_too_deep(text: bytes) -> bool:
    """Whether arrays and objects in a JSON text are nested deeper than NESTING_MAX. Bytes that begin with neither are
    not: a reader of JSON refuses them at once.
    """
    if not text.lstrip(b" \t\n\r").startswith((b"[", b"{")):
        return False
    depth = 0
    for bracket in _BRACKET.findall(_TEXT.sub(b"", text)):
        depth += 1 if bracket in b"[{" else -1
        if depth > NESTING_MAX:
            return True
    return False
