"""Names of nodes: which texts are valid, which names are too similar, and which of the names that delegations give to a
node counts.

People type names where they mean to trust a node (`hocket mesh coordinator rack-1`), so a name must not be mistaken for
anything else: not for a word of the command line, not for the beginning of an id, and not for another node's name.
"""

import re

from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Standing
from hocket.kernel.ucan import Delegation
from hocket.log.permissions import Permissions

HERE = "here"
ID_DIGITS_MIN = 4
_RESERVED = frozenset({HERE, "all", "any", "coordinator", "everyone", "me", "nobody", "none", "owner", "self", "this"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID_LIKE = re.compile(f"[0-9a-fA-F]{{{ID_DIGITS_MIN},}}")
_ALIKE = str.maketrans({"0": "o", "1": "l", "i": "l", ".": "-", "_": "-"})


def why_not(text: str) -> str | None:
    """Why this is not a valid name; None if it is."""
    if _NAME.fullmatch(text) is None:
        return "a name has 1 to 64 letters, digits, dots and dashes, and begins with a letter or digit"
    if text.lower() in _RESERVED:
        return "this word is reserved"
    if _ID_LIKE.fullmatch(text) is not None:
        return "it could be mistaken for the beginning of a node's id"
    return None


def is_name(text: str) -> bool:
    return why_not(text) is None


def likeness(name: str) -> str:
    """Equal for names that a reader could mistake for each other: in another case, or with 0 for o, 1 or i for l, rn
    for m, or another separator.
    """
    return name.lower().translate(_ALIKE).replace("rn", "m")


def names(permissions: Permissions) -> dict[int, str]:
    """The name of every node that has one. A node's name is the one given by the issuer closest to the user, and among
    equally close issuers by the earliest; that issuer may change it with a later delegation. A name that a node gives
    itself does not count, nor does an invalid name.
    """
    by_cid = {each.cid: each for each in permissions.delegations}
    depths: dict[bytes, int] = {}
    chosen: dict[int, tuple[tuple[bool, int], str, str]] = {}
    for each in permissions.delegations:
        fault = permissions.authority.fault(each)
        if fault not in (None, Reason.REVOKED) or each.issuer == each.audience:
            continue
        if each.name is None or not is_name(each.name):
            continue
        # A revoked delegation names a node only if no other does.
        rank = fault is not None, _depth(each, by_cid, depths)
        known = chosen.get(each.node)
        if known is None or rank < known[0] or (rank == known[0] and each.issuer == known[1]):
            chosen[each.node] = rank, each.issuer, each.name
    return {node: name for node, (_, _, name) in chosen.items()}


def namesakes(permissions: Permissions, name: str, now_ms: int) -> dict[int, str]:
    """The nodes in the mesh with this name or a similar one, except revoked ones."""
    return {
        node: known
        for node, known in names(permissions).items()
        if likeness(known) == likeness(name)
        and permissions.authority.standing(node, now_ms) not in (Standing.REVOKED, Standing.UNKNOWN)
    }


def _depth(delegation: Delegation, by_cid: dict[bytes, Delegation], depths: dict[bytes, int]) -> int:
    """The number of delegations between this one and the user. The chain is complete and has no cycle, or the
    delegation would not be valid.
    """
    known = depths.get(delegation.cid)
    if known is None:
        known = 1 + max((_depth(by_cid[cid], by_cid, depths) for cid in delegation.proofs), default=0)
        depths[delegation.cid] = known
    return known
