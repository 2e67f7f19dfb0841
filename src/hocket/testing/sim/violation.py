"""A rule that a run has broken."""

from typing import NamedTuple


class Violation(NamedTuple):
    """`about` is the job or op that shows it, if there is one."""

    rule: str
    about: bytes | None
    sentence: str
