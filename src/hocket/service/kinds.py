"""The options of kinds, as workers have defined them."""

from typing import Any

import msgspec

from hocket.families.kinds.facts import KIND
from hocket.families.kinds.rules import KINDS
from hocket.kernel.ids import node_text
from hocket.mesh import membership
from hocket.service import Service, ServiceAnswer


class KindShown(ServiceAnswer, frozen=True):
    """The options that jobs of a kind have unless their submitter says otherwise. A kind that ends with a dot stands
    for all kinds below it that are not listed.
    """

    kind: str
    options: dict[str, Any]
    author: str
    author_name: str | None
    defined_ms: int


def listing(service: Service) -> list[KindShown]:
    with service.read() as session:
        names = {member.node: member.name for member in membership.members(service.runtime.log, session)}
        found = [
            (row.subject.key.decode(), KINDS.decode(row.state))
            for row in session.each_subject()
            if row.subject.family == KIND
        ]
    return [
        KindShown(
            kind,
            msgspec.json.decode(each.policy_envelope or b"{}"),
            node_text(each.defined.node),
            names.get(each.defined.node),
            each.defined.wall,
        )
        for kind, each in found
    ]
