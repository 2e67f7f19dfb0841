"""Derivations: pure functions over the ops of a log. The coordinator runs them in passes (`service.derive`), and every
node that has the same ops can repeat each pass and must get the same.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from hocket.errors import Failed, Usage
from hocket.kernel.canonical import canonical_json
from hocket.kernel.clock import hlc_text
from hocket.kernel.ids import content_hash, node_text, ulid_text
from hocket.kernel.ops import Op
from hocket.kernel.rules import DERIVATION_KINDS
from hocket.kernel.vocabulary import NAMES, discriminant

PREFIX = DERIVATION_KINDS[0]
_NAME = re.compile(r"[a-z0-9_-]{1,64}(\.[a-z0-9_-]{1,64}){0,3}")


class DerivationOp(msgspec.Struct, frozen=True):
    """An op as a derivation sees it. `payload` has the fields of the payload; bytes are base64."""

    id: str
    type: str
    author: str
    time: str
    wall_ms: int
    payload: dict[str, Any]


Step = Callable[[Any, DerivationOp], tuple[Any, Any]]
"""From a state and an op to the new state and what follows from the op, or None. All are JSON values."""


class Derivation(NamedTuple):
    name: str
    step: Step
    initial: Any

    @property
    def kind(self) -> str:
        """The kind of the jobs that are its passes."""
        return PREFIX + self.name


REGISTRY: dict[str, Derivation] = {}


def derivation(name: str, *, initial: Any = None) -> Callable[[Step], Step]:
    """Registers a pure function as the derivation of this name. It gets a state, at first `initial`, and an op, and
    returns the new state and what follows from the op, or None. It must read nothing else: no clock, no file, no random
    number. A changed function needs a new name, since it would not repeat its earlier passes.
    """
    if not _NAME.fullmatch(name):
        raise Usage(f"bad name of a derivation {name!r}; use lower-case letters, digits, '-' and '_' in up to 4 parts")

    def register(step: Step) -> Step:
        REGISTRY[name] = Derivation(name, step, initial)
        return step

    return register


class Derived(NamedTuple):
    """What a pass gave, in canonical JSON, and a hash over the ids of its ops."""

    result: bytes
    inputs: str


def run(derivation: Derivation, state: Any, ops: Iterable[Op]) -> Derived:
    """Runs the function over the ops. Raises Failed, with the op, if the function does or gives no JSON."""
    found: list[dict[str, Any]] = []
    ids: list[bytes] = []
    for op in ops:
        ids.append(op.id)
        try:
            state, value = derivation.step(state, _seen(op))
            if value is not None:
                found.append({"op": ulid_text(op.id[:16]), "value": value})
                canonical_json(value)
        except Exception as error:
            said = f"the derivation {derivation.name} failed at op {ulid_text(op.id[:16])}"
            raise Failed(f"{said}: {type(error).__name__}: {error}") from error
    try:
        return Derived(canonical_json({"derived": found, "state": state}), content_hash(b"".join(ids)).hex())
    except ValueError as error:
        raise Failed(f"the state of the derivation {derivation.name} is no JSON value: {error}") from None


def _seen(op: Op) -> DerivationOp:
    number, stamp = discriminant(op.payload), op.timestamp
    name = NAMES.get(number, str(number))
    fields = msgspec.to_builtins(op.payload)
    return DerivationOp(ulid_text(op.id[:16]), name, node_text(op.node_id), hlc_text(stamp), stamp.wall, fields)
