"""The members of requests that this server reads. It ignores all others."""

from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from hocket.a2a.errors import A2aError, ErrorReason, bad_params
from hocket.a2a.states import TaskState
from hocket.kernel.decoding import convert

PARTS_MAX = 64
MESSAGE_ID_CHARS_MAX = 256
CONTEXT_CHARS_MAX = 80
PAGE_DEFAULT = 50
PAGE_MAX = 100
# The member of a message's metadata that names the skill.
SKILL = "skill"

# A context is kept as a tag of the job.
ContextId = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_.:/+-]{{1,{CONTEXT_CHARS_MAX}}}$")]
TaskId = Annotated[str, Meta(min_length=1, max_length=64)]
HistoryLength = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class A2aStruct(Struct, frozen=True, rename="camel", kw_only=True):
    pass


P = TypeVar("P", bound=A2aStruct)


class MessagePart(A2aStruct, frozen=True):
    text: str | UnsetType = UNSET
    raw: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    data: Any = UNSET
    media_type: str | None = None


class A2aMessage(A2aStruct, frozen=True):
    message_id: Annotated[str, Meta(min_length=1, max_length=MESSAGE_ID_CHARS_MAX)]
    role: str
    parts: Annotated[list[MessagePart], Meta(min_length=1, max_length=PARTS_MAX)]
    context_id: ContextId | None = None
    task_id: TaskId | None = None
    metadata: dict[str, Any] | None = None

    def payload(self) -> dict[str, Any]:
        """The payload of the job: the object of its data part, and its text as `text`. Raises A2aError."""
        if self.role != "ROLE_USER":
            raise bad_params("a message from a client has the role ROLE_USER", "message.role")
        texts: list[str] = []
        found: dict[str, Any] | None = None
        for number, part in enumerate(self.parts):
            place = f"message.parts[{number}]"
            if sum(each is not UNSET for each in (part.text, part.raw, part.url, part.data)) != 1:
                raise bad_params("a part has one of text, raw, url and data", place)
            media = (part.media_type or "").partition(";")[0].strip().lower()
            if isinstance(part.text, str) and media in ("", "text/plain"):
                texts.append(part.text)
            elif part.data is UNSET or media not in ("", "application/json"):
                raise A2aError(
                    ErrorReason.CONTENT_TYPE_NOT_SUPPORTED,
                    "this agent reads parts that are text/plain or application/json",
                )
            elif found is not None or not isinstance(part.data, dict):
                raise bad_params("a message has at most one part with data, which is an object", f"{place}.data")
            else:
                found = part.data
        if texts and "text" in (found or {}):
            raise bad_params("a message has parts with text, and a member `text` in its data", "message.parts")
        return {**(found or {}), **({"text": "\n".join(texts)} if texts else {})}

    def skill(self, skills: tuple[str, ...]) -> str:
        """The skill that it names in its metadata; it need not if there is one only. Raises A2aError."""
        named = (self.metadata or {}).get(SKILL, skills[0] if len(skills) == 1 else None)
        if named not in skills:
            place = f"message.metadata.{SKILL}"
            raise bad_params(f"name a skill of this agent as metadata.{SKILL}: {', '.join(skills)}", place)
        return str(named)


class SendConfiguration(A2aStruct, frozen=True):
    task_push_notification_config: Any = None
    history_length: HistoryLength | None = None
    return_immediately: bool | None = None


class SendParams(A2aStruct, frozen=True):
    message: A2aMessage
    configuration: SendConfiguration | None = None


class TaskParams(A2aStruct, frozen=True):
    id: str
    history_length: HistoryLength | None = None


class ListParams(A2aStruct, frozen=True):
    context_id: ContextId | None = None
    status: TaskState | None = None
    page_size: Annotated[int, Meta(ge=1, le=PAGE_MAX)] | None = None
    page_token: str | None = None
    history_length: HistoryLength | None = None
    status_timestamp_after: Annotated[datetime, Meta(tz=True)] | None = None
    include_artifacts: bool | None = None


def read_params(params: Any, wanted: type[P]) -> P:
    """Raises A2aError with the member that is wrong."""
    try:
        return convert(params, wanted)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        sentence, _, place = str(error).partition(" - at `$")
        raise bad_params(sentence, place.strip("`.") or "params") from None
