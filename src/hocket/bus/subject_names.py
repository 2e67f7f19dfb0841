"""The names of subjects on the bus: `hocket.<cluster>.<topic>.<kind…>`. A cluster, a topic and a kind can be any text.
Letters, digits, `-` and `_` stand for themselves; every other character is written as `%XX` for each of its bytes, so
that a name can be a subject of NATS and a part of a file's name, and can be read back. A kind is split at its dots, so
that one pattern covers all kinds below a prefix. An empty part is `%`.
"""

import re
from typing import NamedTuple

from hocket.kernel.postcard import Malformed

ROOT = "hocket"
# NATS reads commands of up to 4096 bytes: a subject, one to reply to, and a few more. Every kind fits.
NAME_CHARS_MAX = 3_500

_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")
_TOKEN = re.compile(r"%|(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_EMPTY = "%"


class SubjectName(NamedTuple):
    cluster: str
    topic: str
    kind: str


def cluster_root(cluster: str) -> str:
    """How every subject of a mesh begins."""
    return f"{ROOT}.{_token(cluster)}"


def subject_name(cluster: str, topic: str, kind: str) -> str:
    """Raises Malformed if the name would be too long, or a text cannot be UTF-8."""
    return _checked(".".join((ROOT, _token(cluster), _token(topic), *map(_token, kind.split(".")))))


def subject_pattern(cluster: str, topic: str, kind: str = "") -> str:
    """The pattern for one kind; for all kinds below it if it ends in a dot, and for every kind if it is empty. Raises
    Malformed as `subject_name` does.
    """
    if kind and not kind.endswith("."):
        return subject_name(cluster, topic, kind)
    parts = kind.split(".")[:-1]
    return _checked(".".join((ROOT, _token(cluster), _token(topic), *map(_token, parts), ">")))


def read_subject(name: str) -> SubjectName:
    """The inverse of `subject_name`. Raises Malformed for anything that it would not have written."""
    root, *tokens = _checked(name).split(".")
    if root != ROOT or len(tokens) < 3:
        raise Malformed(f"not a subject of a mesh: {name[:100]!r}")
    cluster, topic, *kind = map(_text, tokens)
    if any("." in part for part in kind):
        raise Malformed(f"a dot inside a part of a kind: {name[:100]!r}")
    return SubjectName(cluster, topic, ".".join(kind))


def _checked(name: str) -> str:
    if len(name) > NAME_CHARS_MAX:
        raise Malformed(f"a subject's name has at most {NAME_CHARS_MAX} characters, not {len(name)}")
    return name


def _token(part: str) -> str:
    try:
        data = part.encode()
    except UnicodeEncodeError as error:
        raise Malformed(f"text that UTF-8 cannot carry: {error}") from None
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], data).decode("ascii") or _EMPTY


def _text(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise Malformed(f"not a part of a subject's name: {token[:100]!r}")
    if token == _EMPTY:
        return ""
    try:
        part = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), token.encode("ascii")).decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8: {error}") from None
    if _token(part) != token:
        raise Malformed(f"a part of a subject's name has another spelling: {token[:100]!r}")
    return part
