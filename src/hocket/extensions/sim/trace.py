"""What happened in a simulated run, in order: one line for each event, and one hash over all of them. Two runs from the
same seed have the same hash, in any process and on any day.
"""

from typing import NamedTuple

from blake3 import blake3

from hocket.kernel.ids import ulid_text


class SimEvent(NamedTuple):
    """`node` is its number, or -1 for all nodes; `about` is the job or op, if there is one."""

    at: float
    node: int
    what: str
    about: bytes
    detail: str

    def __str__(self) -> str:
        who = f"node {self.node}" if self.node >= 0 else "mesh"
        about = f" {ulid_text(self.about)}" if self.about else ""
        return f"{self.at:10.3f}  {who:8} {self.what}{about}{' ' if self.detail else ''}{self.detail}"


class Trace:
    def __init__(self) -> None:
        self.events: list[SimEvent] = []
        self.now = 0.0

    def add(self, at: float, node: int, what: str, about: bytes = b"", detail: str = "") -> None:
        self.events.append(SimEvent(at, node, what, about, detail))

    def digest(self) -> str:
        hasher = blake3()
        for event in self.events:
            hasher.update(f"{event.at:.9f}|{event.node}|{event.what}|{event.about.hex()}|{event.detail}\n".encode())
        return hasher.hexdigest()

    def around(self, about: bytes | None, last: int) -> list[SimEvent]:
        """The last events about one thing, with what happened to whole nodes meanwhile."""
        if about is None:
            return self.events[-last:]
        chosen = [event for event in self.events if event.about == about or (not event.about and event.what in _LARGE)]
        return chosen[-last:]


_LARGE = frozenset(("crash", "restart", "cut", "heal", "slow disk", "good disk", "clock", "quiet"))


class Violation(NamedTuple):
    """`about` is the job or op that shows it, if there is one."""

    rule: str
    about: bytes | None
    sentence: str
