"""The options of kinds, as workers have defined them."""

from typing import Any

import msgspec

from hocket.api import Service, ServiceAnswer
from hocket.api.operation import TokenNeed, operation
from hocket.api.views import at, json_text, table
from hocket.families.kinds.facts import KIND
from hocket.families.kinds.rules import KINDS
from hocket.kernel.ids import node_text
from hocket.mesh import membership


class KindShown(ServiceAnswer, frozen=True):
    """The options that jobs of a kind have unless their submitter says otherwise. A kind that ends with a dot stands
    for all kinds below it that are not listed.
    """

    kind: str
    options: dict[str, Any]
    author: str
    author_name: str | None
    defined_ms: int


_show = table(
    KindShown,
    "no kind has options",
    {
        "kind": "kind",
        "options": lambda each: json_text(each.options) if each.options else "-",
        "defined by": lambda each: each.author_name or each.author,
        "since": at("defined_ms"),
    },
)


@operation(
    "list_kinds",
    "GET /v1/kinds",
    TokenNeed("Job", "Read", is_judged_later=True),
    command="kinds",
    key=lambda each: each.kind,
    show=_show,
)
def listing(service: Service) -> list[KindShown]:
    """List the kinds whose handlers have options: which, and which node defined them. A job of the kind has these
    options wherever it is submitted, unless its submitter says otherwise.

    A worker that starts defines the kinds that it serves, if their options have changed and its node may: the owner's
    nodes may, others with a grant like `--may job:define:acme.`. A kind that ends with a dot stands for every kind
    below it that is not listed.

    \b
      hocket job kinds
      hocket job kinds --json | jq '.[] | select(.kind == "acme.render").options'
    """
    with service.read() as session:
        names = {member.node: member.name for member in membership.members(service.runtime.log, session)}
        found = [
            (row.subject.key.decode(), KINDS.decode(row.state))
            for row in session.each_subject()
            if row.subject.family == KIND and service.may("Job", "Read", row.subject.key.decode())
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
