"""Sanitisation: what is taken out of a payload before it goes to a node that may not see all of it. Each rule is named
in the `sanitize` caveat of the reader's delegation, and rules are applied in the order in which it lists them. Who may
read what is decided by authority; wrapping the result for the wire and leaving out the signature is the sender's work.
"""

import re
from typing import NamedTuple

from hocket.kernel.postcard import Malformed
from hocket.kernel.rules import SANITIZE

_TRUNCATE = re.compile(r"TruncateContent\((0|[1-9][0-9]{0,9})\)")


class Rule(NamedTuple):
    name: str
    size: int | None = None


def parse_rule(text: str) -> Rule:
    """The rule that a caveat names. Each has one spelling, so two lists are the same rules when they are equal."""
    if found := _TRUNCATE.fullmatch(text):
        return Rule("TruncateContent", int(found[1]))
    if text in SANITIZE and text != "TruncateContent":
        return Rule(text)
    raise Malformed(f"not a sanitisation rule: {text[:64]!r}")
