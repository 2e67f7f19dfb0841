"""An archive in an object store that speaks S3: AWS, and whatever has its protocol. Four kinds of requests are needed,
so they are signed here (AWS Signature Version 4) and go through the standard library; no SDK is loaded.

An object is there whole or not at all. A file is put only in the place of what the run has seen there, by its ETag: of
two runs into one archive the slower one ends with a conflict, and nothing that the other has written is lost.
"""

import hashlib
import hmac
import http.client
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from hocket.errors import Conflict, NotAuthorised, StoreError, Usage
from hocket.kernel.postcard import Malformed
from hocket.log.archives.day_file import FILE_BYTES_MAX
from hocket.log.archives.targets import ArchiveTarget, checked_size

S3 = "s3://"
TIMEOUT_S = 60.0
TRIES = 3
# Pauses between them, doubled each time.
PAUSE_S = 0.5
# The most keys in one answer: no store gives more.
PAGE = 1_000
ANSWER_BYTES_MAX = 8 * 1024 * 1024
_MESSAGE_CHARS_MAX = 200
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_NAMESPACE = re.compile(r"^\{[^}]*\}")


class S3Access(NamedTuple):
    """Where a bucket is, and as whom. All of it comes from the variables by which the tools of AWS take it."""

    endpoint: str
    region: str
    key_id: str
    secret: str
    token: str

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "S3Access":
        """Raises Usage."""
        key_id, secret = environment.get("AWS_ACCESS_KEY_ID", ""), environment.get("AWS_SECRET_ACCESS_KEY", "")
        if not key_id or not secret:
            raise Usage("an archive in S3 needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        named = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
        endpoint = (named or f"https://s3.{region}.amazonaws.com").rstrip("/")
        url = urlsplit(endpoint)
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.username:
            raise Usage(f"bad AWS_ENDPOINT_URL {endpoint!r}; use an address like https://s3.example.org")
        return cls(endpoint, region, key_id, secret, environment.get("AWS_SESSION_TOKEN", ""))


class S3Answer(NamedTuple):
    status: int
    etag: str
    body: bytes


class ListedPage(NamedTuple):
    """Keys with their ETags. `after` asks for the next page; None if this is the last."""

    etags: dict[str, str]
    after: str | None


def s3_target(address: str, environment: Mapping[str, str] = os.environ) -> ArchiveTarget:
    """The target of s3://BUCKET/PREFIX. Raises Usage."""
    bucket, _, prefix = address.removeprefix(S3).partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise Usage(f"bad archive {address}; give s3://BUCKET or s3://BUCKET/PREFIX")
    found = _Bucket(S3Access.read(environment), bucket, prefix.strip("/"))
    shown = f"{S3}{bucket}/{prefix.strip('/')}".rstrip("/")
    return ArchiveTarget(shown, found.names, found.read, found.put, nullcontext, found.exists)


class _Bucket:
    def __init__(self, access: S3Access, bucket: str, prefix: str, now: Callable[[], float] = time.time) -> None:
        self._access, self._bucket, self._now = access, bucket, now
        self._prefix = f"{prefix}/" if prefix else ""
        # Of each file that this run has seen or put, what is there.
        self._etags: dict[str, str] = {}

    def names(self) -> list[str]:
        self._etags = {}
        for page in self._pages():
            self._etags |= page.etags
        return [name for name in self._etags if "/" in name and not name.startswith(".")]

    def exists(self) -> bool:
        return any(page.etags for page in self._pages())

    def read(self, name: str) -> bytes:
        answer = self._ask("GET", self._prefix + name, limit=FILE_BYTES_MAX + 1)
        if answer.status != 200:
            raise Malformed(f"it cannot be read: {_why(answer)}")
        return checked_size(answer.body)

    def put(self, name: str, frame: bytes) -> None:
        known = self._etags.get(name)
        condition = {"If-None-Match": "*"} if known is None else {"If-Match": known}
        answer = self._ask("PUT", self._prefix + name, body=frame, headers=condition)
        if answer.status in (409, 412):
            # An answer may have been lost, and another node writes the same bytes.
            there = self._ask("GET", self._prefix + name, limit=len(frame) + 1)
            if there.body != frame:
                raise Conflict(f"another process has written {name} into the archive {self._shown}; try again later")
            answer = there
        self._check(answer, f"write {name} into")
        self._etags[name] = answer.etag

    def _pages(self) -> Iterator[ListedPage]:
        after: str | None = ""
        while after is not None:
            query = {"list-type": "2", "prefix": self._prefix, "max-keys": str(PAGE)}
            if after:
                query["continuation-token"] = after
            answer = self._ask("GET", "", query=query)
            self._check(answer, "read")
            try:
                page = listed(answer.body, self._prefix)
            except Malformed as error:
                raise StoreError(f"cannot read the archive {self._shown}: {error}") from None
            after = page.after
            yield page

    @property
    def _shown(self) -> str:
        return f"{S3}{self._bucket}/{self._prefix}"

    def _check(self, answer: S3Answer, what: str) -> None:
        if answer.status == 403:
            raise NotAuthorised(f"cannot {what} the archive {self._shown}: {_why(answer)}")
        if answer.status != 200:
            raise StoreError(f"cannot {what} the archive {self._shown}: {_why(answer)}")

    def _ask(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        limit: int = ANSWER_BYTES_MAX,
    ) -> S3Answer:
        """Asks again where the store was busy or could not be reached. Raises StoreError."""
        url = urlsplit(self._access.endpoint)
        path = f"{url.path}/{self._bucket}/{quote(key, safe='/-_.~')}"
        asked = sorted((query or {}).items())
        sent = "&".join(f"{quote(name, safe='')}={quote(value, safe='-_.~')}" for name, value in asked)
        tried = 0
        while True:
            tried += 1
            at = datetime.fromtimestamp(self._now(), UTC)
            signed = signed_headers(self._access, method, url.netloc, path, sent, headers or {}, body, at)
            try:
                answer = _send(self._access.endpoint, method, f"{path}?{sent}" if sent else path, signed, body, limit)
            except (OSError, http.client.HTTPException) as error:
                if tried == TRIES:
                    said = str(error) or type(error).__name__
                    raise StoreError(f"{self._access.endpoint} cannot be reached: {said}") from None
            else:
                if answer.status < 500 or tried == TRIES:
                    return answer
            time.sleep(PAUSE_S * 2 ** (tried - 1))


def _send(endpoint: str, method: str, target: str, headers: Mapping[str, str], body: bytes, limit: int) -> S3Answer:
    url = urlsplit(endpoint)
    host = url.hostname or ""
    connection = (
        http.client.HTTPSConnection(host, url.port, timeout=TIMEOUT_S, context=ssl.create_default_context())
        if url.scheme == "https"
        else http.client.HTTPConnection(host, url.port, timeout=TIMEOUT_S)
    )
    try:
        connection.request(method, target, body, dict(headers))
        response = connection.getresponse()
        return S3Answer(response.status, response.headers.get("ETag", ""), response.read(limit))
    finally:
        connection.close()


def signed_headers(
    access: S3Access,
    method: str,
    host: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    body: bytes,
    at: datetime,
) -> dict[str, str]:
    """The headers of a request, with its signature. `path` and `query` are encoded and in order already."""
    stamp, day = at.strftime("%Y%m%dT%H%M%SZ"), at.strftime("%Y%m%d")
    digest = hashlib.sha256(body).hexdigest()
    sent = {"Host": host, "X-Amz-Content-Sha256": digest, "X-Amz-Date": stamp, **headers}
    if access.token:
        sent["X-Amz-Security-Token"] = access.token
    lines = sorted((name.lower(), value.strip()) for name, value in sent.items())
    names = ";".join(name for name, _ in lines)
    request = "\n".join((method, path, query, *(f"{name}:{value}" for name, value in lines), "", names, digest))
    scope = f"{day}/{access.region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{access.secret}".encode()
    for part in (day, access.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={access.key_id}/{scope}"
    return {**sent, "Authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"}


def listed(body: bytes, prefix: str) -> ListedPage:
    """Reads one page of a list of objects, whose keys begin with the prefix. Raises Malformed."""
    etags: dict[str, str] = {}
    after, is_cut = None, False
    try:
        for each in ElementTree.fromstring(body):
            name = _NAMESPACE.sub("", each.tag)
            if name == "Contents":
                parts = {_NAMESPACE.sub("", part.tag): part.text or "" for part in each}
                key = parts.get("Key", "")
                if not key.startswith(prefix) or "ETag" not in parts:
                    raise Malformed("its list has an object without a tag, or one that was not asked for")
                etags[key.removeprefix(prefix)] = parts["ETag"]
            elif name == "NextContinuationToken":
                after = each.text
            elif name == "IsTruncated":
                is_cut = each.text == "true"
    except ElementTree.ParseError as error:
        raise Malformed(f"its list cannot be read: {error}") from None
    if is_cut and not after:
        raise Malformed("its list breaks off")
    return ListedPage(etags, after if is_cut else None)


def _why(answer: S3Answer) -> str:
    """What the store says, in one line."""
    found = re.search(rb"<Message>([^<]*)</Message>", answer.body) or re.search(rb"<Code>([^<]*)</Code>", answer.body)
    said = found[1].decode(errors="replace") if found else http.client.responses.get(answer.status, "no reason given")
    return "".join(each if each.isprintable() else " " for each in said)[:_MESSAGE_CHARS_MAX].rstrip(". ")
