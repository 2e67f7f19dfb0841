"""Turns what a view shows into HTML. Every text is made safe twice: characters that are invisible or change the
direction of text are spelled out, and then Jinja escapes it.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import msgspec
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from hocket.api.views import ago
from hocket.kernel.texts import clean, clean_json, counted, span
from hocket.page.views import packages

# So much of a payload, a result or a row is shown, and fits into a form; the rest is there over the API.
JSON_CHARS_MAX = 20_000
# The size of a drawing in its own units.
BARS_WIDTH, BARS_HEIGHT = 240, 36
# How many of the last characters of an id are shown in lists.
ID_CHARS = 6
_SIGNS = {
    **{"running": "▶", "succeeded": "✓", "failed": "✕", "cancelled": "⊘"},
    **{"ready": "○", "pending": "○", "delayed": "◔", "blocked": "◫"},
    **{"live": "●", "warn": "◐", "alert": "◐", "critical": "◔", "dead": "✕", "unknown": "○"},
    **{"ok": "✓", "trouble": "▲", "verified": "✓", "own": "✓", "bad": "✕"},
    **{"waiting": "○", "leased": "▶", "acknowledged": "✓", "expired": "⊘"},
    **{"open": "○", "used": "✓", "kept": "✓", "late": "◔", "broken": "✕", "revoked": "⊘"},
}


@cache
def assets() -> Mapping[str, tuple[str, bytes]]:
    """The static files by their name in an address, which changes with the content: their type and content."""
    types = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
    found = {}
    for file in (each for package in packages() for each in files(package).joinpath("static").iterdir()):
        name, _, ending = file.name.rpartition(".")
        content = file.read_bytes()
        found[f"{name}-{sha256(content).hexdigest()[:12]}.{ending}"] = (types[ending], content)
    return found


@cache
def _asset_names() -> Mapping[str, str]:
    return {f"{name.rpartition('-')[0]}.{name.rpartition('.')[2]}": name for name in assets()}


class Rendering:
    """The templates of one server; `base` is where a proxy has put it."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._jinja = Environment(
            loader=ChoiceLoader([PackageLoader(each) for each in packages()]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_safe,
        )
        self._jinja.filters |= {
            **{"when": when, "span": span, "json": json_text, "short": short, "state": state, "count": count},
            **{"size": size, "counted": counted, "segment": lambda text: quote(text, safe=""), "exact": escape},
        }
        self._jinja.globals |= {"base": base, "asset": self._asset}

    def html(self, template: str, values: Mapping[str, Any]) -> bytes:
        return self._jinja.get_template(template).render(values).encode()

    def _asset(self, name: str) -> str:
        return f"{self._base}/assets/{_asset_names()[name]}"


def _safe(value: Any) -> Any:
    return clean(value, lines=True) if isinstance(value, str) and not isinstance(value, Markup) else value


def when(ms: int | None, otherwise: str = "–") -> str | Markup:
    """How long ago a time was, with the time itself on hover."""
    if ms is None:
        return otherwise
    try:
        exact = datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms after 1970"
    shown = ago(ms, int(time.time() * 1000))
    return Markup('<time datetime="{0}" title="{0}" data-ms="{1}">{2}</time>').format(exact, ms, shown)


def whole_json(value: Any) -> str:
    """A value as JSON, a member a line. Whole numbers stay exact."""
    return clean_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def json_text(value: Any) -> str:
    """A value as JSON, cut if it is long."""
    text = whole_json(value)
    return text if len(text) <= JSON_CHARS_MAX else f"{text[:JSON_CHARS_MAX]}\n… {len(text) - JSON_CHARS_MAX} more"


def short(id: str) -> str | Markup:
    """The end of an id, which tells the ids of one list apart; all of it on hover."""
    return Markup('<abbr title="{}">{}</abbr>').format(_safe(id), _safe(id[-ID_CHARS:]))


def state(word: str) -> Markup:
    """A state as a sign and its word, so that it is not told by colour alone."""
    sign = _SIGNS.get(word, "·")
    return Markup('<span class="state {0}"><span aria-hidden="true">{1}</span> {2}</span>').format(
        escape(word if word in _SIGNS else "other"), sign, _safe(word)
    )


def count(number: int) -> str:
    return f"{number:,}".replace(",", "\u202f") if number >= 10_000 else str(number)


def size(number: int) -> str:
    value, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def bars(values: Sequence[int | None], sentence: str, tone: str = "") -> Markup:
    """A drawing with a bar for each value, none where it is not known; a screen reader gets the sentence."""
    most = max((each for each in values if each is not None), default=0)
    step = BARS_WIDTH / max(1, len(values))
    rectangles = Markup("").join(
        Markup('<rect x="{}" y="{}" width="{}" height="{}"/>').format(
            f"{place * step:.1f}", f"{BARS_HEIGHT - height:.1f}", f"{step * 0.8:.1f}", f"{height:.1f}"
        )
        for place, value in enumerate(values)
        if value
        for height in (max(2.0, BARS_HEIGHT * value / most),)
    )
    return Markup(
        '<svg class="bars {}" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>'
    ).format(tone, BARS_WIDTH, BARS_HEIGHT, sentence, rectangles)
