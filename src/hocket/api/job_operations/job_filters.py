"""Which jobs a request is about: the members that lists, counts and changes of many jobs have in common."""

import time
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from hocket.api import Service
from hocket.errors import Usage
from hocket.families.jobs.index import VALUE_CHARS_MAX, argument_of
from hocket.families.jobs.rules import KIND_LENGTH_MAX
from hocket.families.jobs.view import JobState
from hocket.kernel.ids import parse_node
from hocket.kernel.policy import LABEL_LENGTH_MAX, PATH_CHARS_MAX
from hocket.kernel.texts import duration_ms
from hocket.store import Session

if TYPE_CHECKING:
    from hocket.families.jobs.selection import JobSelection

ERROR_CHARS_MAX = 256
MS_MAX = 281_474_976_710_655  # 2^48 - 1


class JobWhich(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which jobs: those that match everything that is given."""

    state: Annotated[JobState, Meta(description="Only jobs in this state.")] | None = None
    kind: (
        Annotated[
            str,
            Meta(min_length=1, max_length=KIND_LENGTH_MAX, description="Only this kind; `acme.` for all below acme."),
        ]
        | None
    ) = None
    submitter: (
        Annotated[
            str, Meta(min_length=1, max_length=128, description="Only jobs that this node submitted; a name or id.")
        ]
        | None
    ) = None
    since_ms: Annotated[int, Meta(ge=0, le=MS_MAX, description="Only jobs submitted at this time or later.")] | None = (
        None
    )
    until_ms: Annotated[int, Meta(ge=0, le=MS_MAX, description="Only jobs submitted before this time.")] | None = None
    id: Annotated[str, Meta(min_length=1, max_length=26, description="Only jobs with this text in the id.")] | None = (
        None
    )
    tag: (
        Annotated[
            str,
            Meta(min_length=1, max_length=LABEL_LENGTH_MAX, description="Only jobs with this tag, like team=video."),
        ]
        | None
    ) = None
    error: (
        Annotated[
            str,
            Meta(min_length=1, max_length=ERROR_CHARS_MAX, description="Only jobs with this text in their last error."),
        ]
        | None
    ) = None

    arg: (
        Annotated[
            str,
            Meta(
                min_length=2,
                max_length=PATH_CHARS_MAX + 1 + VALUE_CHARS_MAX,
                description="Only jobs with this argument, like frame=7, of the kinds that have it as an index.",
            ),
        ]
        | None
    ) = None

    def selection(self, service: Service, session: Session) -> "JobSelection":
        """Raises NotFound if no node is the submitter, and Usage if the argument cannot be read."""
        from hocket.families.jobs.selection import JobSelection

        node = None if self.submitter is None else _node(service, session, self.submitter)
        times = self.since_ms, self.until_ms
        try:
            argument = None if self.arg is None else argument_of(self.arg)
        except ValueError as error:
            raise Usage(str(error)) from None
        return JobSelection(self.state, None, self.kind, node, *times, self.id, self.tag, self.error, argument)


def _node(service: Service, session: Session, text: str) -> int:
    from hocket.api.nodes import members_of
    from hocket.mesh import membership

    try:
        return parse_node(text)
    except ValueError:
        return membership.find(members_of(service, session), text).node


def past_ms(text: str) -> int:
    """A time that a person writes as an age, or as it is for jobs that start later. Raises Usage."""
    try:
        return max(0, int(time.time() * 1000) - duration_ms(text))
    except ValueError:
        pass
    from hocket.families.jobs.drafts import moment_ms

    try:
        return moment_ms(text)
    except ValueError as error:
        raise Usage(f"bad time {text!r}: {error}; or give an age, like 1h") from None
