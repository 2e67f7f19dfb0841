"""Text from elsewhere as it is safe to show on a terminal or in JSON: control characters, invisible ones and those that
turn the direction of writing round are spelled out.
"""

import re

# Controls of ASCII but tab and line feed, those of Latin-1, all that are invisible or turn the direction of writing
# round, and halves of characters, which no terminal can show.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
_ONE_LINE = str.maketrans("\t\n", "  ")


def clean(text: object, *, lines: bool = False) -> str:
    """The text as it is safe to show; on one line unless `lines` allows several."""
    shown = str(text) if lines else str(text).translate(_ONE_LINE)
    return _UNSAFE.sub(_spelled, shown)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean_json(text: str) -> str:
    """JSON that says the same and is safe to show. What is unsafe can only stand inside strings."""
    return text if text.isascii() and "\x7f" not in text else _UNSAFE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    # JSON spells these as two halves.
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
