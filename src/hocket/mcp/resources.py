"""Resources: a job, its log, an artifact, a thread of messages. Names are ids; what others wrote is content."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any, Literal, NamedTuple, cast

import msgspec

from hocket.bus.hints import Changes, about
from hocket.errors import NotFound
from hocket.families.inbox.facts import MESSAGE
from hocket.kernel.ids import parse_ulid
from hocket.kernel.vocabulary import JOB
from hocket.mcp.answers import LINES_MAX
from hocket.mcp.caller import McpCaller

SCHEME = "hocket://"
ResourceKind = Literal["job", "log", "artifact", "thread"]
_FORM = re.compile(r"hocket://(job|artifact|thread)/([0-7][0-9A-HJKMNP-TV-Z]{25})(/log)?")


class ResourceName(NamedTuple):
    kind: ResourceKind
    id: str


def job_uri(job_id: str) -> str:
    return f"{SCHEME}job/{job_id}"


def read_uri(uri: str) -> ResourceName | None:
    """None if it is not a URI of ours."""
    found = _FORM.fullmatch(uri)
    if found is None or (found[3] and found[1] != "job"):
        return None
    return ResourceName("log" if found[3] else cast(ResourceKind, found[1]), found[2])


JSON, TEXT, BYTES = "application/json", "text/plain", "application/octet-stream"
# The most bytes of a resource; of a log the last ones.
RESOURCE_BYTES_MAX = 262_144
# How long a log that still grows is read for what it has.
LOG_READ_S = 1.0


class ResourceText(NamedTuple):
    mime_type: str
    content: bytes


class ResourceForm(NamedTuple):
    """`template` is the form of its URIs."""

    template: str
    name: str
    help: str
    mime_type: str


FORMS = (
    ResourceForm(f"{SCHEME}job/{{id}}", "job", "A job with its ops. Its payload and result are by others.", JSON),
    ResourceForm(f"{SCHEME}job/{{id}}/log", "log", "What a job has printed. By others.", TEXT),
    ResourceForm(f"{SCHEME}artifact/{{id}}", "artifact", "The content of an artifact. By others.", BYTES),
    ResourceForm(f"{SCHEME}thread/{{id}}", "thread", "The messages of a thread. By others.", JSON),
)


def named(uri: str) -> ResourceName:
    found = read_uri(uri)
    if found is None:
        raise NotFound(f"there is no resource {uri!r}; the URIs are {', '.join(each.template for each in FORMS)}")
    return found


def topics(name: ResourceName) -> Changes:
    """What hints of a change of the resource."""
    return about(MESSAGE) if name.kind == "thread" else about(JOB, parse_ulid(name.id))


async def listed(caller: McpCaller, cursor: str | None) -> tuple[list[str], str | None]:
    """The URIs of the newest jobs, ten at a time."""
    if not caller.may("Job", "Read"):
        return [], None
    page = await caller.do("list_jobs", limit=LINES_MAX, after=cursor)
    return [job_uri(each.job_id) for each in page.items], page.next


async def read(caller: McpCaller, uri: str) -> ResourceText:
    name = named(uri)
    if name.kind == "job":
        return _json(await caller.do("show_job", job=name.id))
    if name.kind == "thread":
        return _json(await caller.do("show_thread", message=name.id))
    if name.kind == "log":
        return ResourceText(TEXT, await _log(await caller.do("job_logs", job=name.id)))
    download = await caller.do("download_artifact", id=name.id)
    if download.size > RESOURCE_BYTES_MAX:
        raise NotFound(f"the artifact has {download.size} bytes, more than fit here; `hocket artifacts get` reads it")
    return ResourceText(BYTES, await caller.api.read(lambda: download.part(0, download.size)))


def _json(shown: Any) -> ResourceText:
    content = msgspec.json.encode(shown)
    if len(content) > RESOURCE_BYTES_MAX:
        raise NotFound(f"it has {len(content)} bytes, more than fit here; `hocket show` has all")
    return ResourceText(JSON, content)


async def _log(pieces: AsyncIterator[Any]) -> bytes:
    """The last of what the job has printed so far."""
    found = bytearray()
    with suppress(TimeoutError):
        async with asyncio.timeout(LOG_READ_S), aclosing(pieces):  # type: ignore[type-var]
            async for each in pieces:
                found += each.text.encode()
                del found[:-RESOURCE_BYTES_MAX]
    return bytes(found)
