"""What the headers of a request make of an answer: nothing but its tag if the program has it already, and fewer bytes
if it is long and the program reads gzip. Only answers to a GET that were done, and no streams.
"""

import gzip
import re
from collections.abc import Mapping

from hocket.kernel.ids import content_hash
from hocket.mesh import wire
from hocket.mesh.wire import Reply, Request

GZIP_BYTES_MIN = 2_048
# An answer of more bytes is tagged and compressed on a thread.
AT_ONCE_BYTES_MAX = 32 * 1024
# The fastest one: lists shrink to a tenth all the same.
_LEVEL = 1

_TAG = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_TAGGED = {"cache-control": "private, no-cache", "vary": "accept-encoding"}


def is_negotiable(request: Request, reply: Reply) -> bool:
    is_json = reply.headers.get("content-type") == wire.JSON
    return request.method == "GET" and reply.status == 200 and reply.stream is None and is_json


def negotiated(request: Request, reply: Reply) -> Reply:
    """The tag is weak: the compressed and the plain answer have one."""
    tag = f'"{content_hash(reply.body)[:16].hex()}"'
    headers = {**reply.headers, **_TAGGED, "etag": f"W/{tag}"}
    if has_tag(request.headers.get("if-none-match", ""), tag):
        del headers["content-type"]
        return Reply(304, headers)
    if len(reply.body) < GZIP_BYTES_MIN or not reads_gzip(request.headers):
        return reply._replace(headers=headers)
    body = gzip.compress(reply.body, _LEVEL, mtime=0)
    return Reply(200, {**headers, "content-encoding": "gzip"}, body)


def has_tag(tags: str, ours: str) -> bool:
    return tags.strip() == "*" or any(found[1] == ours for found in _TAG.finditer(tags))


def reads_gzip(headers: Mapping[str, str]) -> bool:
    """Whether the header Accept-Encoding names gzip, or everything, and does not rule it out."""
    weights: dict[str, float] = {}
    for each in headers.get("accept-encoding", "").lower().split(","):
        name, _, parameters = each.partition(";")
        key, _, weight = parameters.strip().partition("=")
        try:
            weights[name.strip()] = float(weight) if key.strip() == "q" else 1.0
        except ValueError:
            weights[name.strip()] = 0.0
    return weights.get("gzip", weights.get("*", 0.0)) > 0
