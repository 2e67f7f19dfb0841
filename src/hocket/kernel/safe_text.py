"""Makes foreign text safe to show on a terminal or in JSON: escapes control characters, invisible characters and those
that change the direction of text.
"""

import re

# ASCII control characters except tab and line feed, those of Latin-1, all characters that are invisible or change the
# direction of text, and halves of characters, which no terminal can show.
_UNSAFE = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
_ONE_LINE = str.maketrans("\t\n", "  ")


def clean(text: object, *, lines: bool = False) -> str:
    """The text in a form that is safe to show; on one line unless `lines` allows several."""
    shown = str(text) if lines else str(text).translate(_ONE_LINE)
    return shown if shown.isascii() and shown.isprintable() else re.sub(_UNSAFE, _spelled, shown)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean_json(text: str) -> str:
    """Equivalent JSON that is safe to show. Unsafe characters can only occur inside strings."""
    return text if text.isascii() and "\x7f" not in text else re.sub(_UNSAFE, _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    # JSON escapes these as two halves.
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
