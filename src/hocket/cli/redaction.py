"""Removes secrets from text that is kept or sent on: tokens and keys by their form, and the values of variables that
the user passed with --env or whose names suggest a secret.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence

REMOVED = "[removed]"
# Shorter values would match everywhere.
VALUE_CHARS_MIN = 4

_LOOKS_SECRET = re.compile(
    r"hocket-[0-9]+-[A-Za-z0-9_-]+"  # an invitation
    r"|hkt_[A-Za-z0-9_-]+"  # a program's token
    r"|eyJ[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*){1,2}"  # a JSON Web Token
    r"|ed25519:[0-9a-f]+"  # a key, perhaps a private one
    r"|(?:(?<=nats://)|(?<=tls://))[^\s,]+(?=@)"  # the user and the password of a bus
    r"|SU[A-Z2-7]{56}"  # the seed of an nkey
)
_SECRET_NAME = re.compile("TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH", re.IGNORECASE)


def redacted(text: str) -> str:
    for value in sorted({*_values(sys.argv)}, key=len, reverse=True):
        if len(value) >= VALUE_CHARS_MIN:
            text = text.replace(value, REMOVED)
    return _LOOKS_SECRET.sub(REMOVED, text)


def redacted_words(words: Sequence[str]) -> Iterator[str]:
    """Redacts a command line. Values of --env are removed whatever their length."""
    before = ""
    for word in words:
        _, equals, value = word.removeprefix("--env=").partition("=")
        if equals and value and (before == "--env" or word.startswith("--env=")):
            yield f"{word.removesuffix(value)}{REMOVED}"
        else:
            yield redacted(word)
        before = word


def _values(words: Sequence[str]) -> Iterator[str]:
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name):
            yield value
    before = ""
    for word in words:
        if before == "--env" or word.startswith("--env="):
            name, equals, value = word.removeprefix("--env=").partition("=")
            yield value if equals else os.environ.get(name, "")
        before = word
