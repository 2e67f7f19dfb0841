"""The way to a libSQL server: its address, and its errors: those of a statement as apsw's, since it is SQLite that
raises them, and all of them as sentences for the user, which name the store by its address without the token and say
what to do.

An address is `libsql://host`, which means TLS, `libsql://host:port?tls=0`, `https://host` or `http://host:port`. The
token comes from a variable, or from the parameter `authToken` of an address that is itself in a variable. It never
appears in a message.
"""

import http.client
import json
import os
import socket
import ssl
from typing import NamedTuple, NoReturn
from urllib.parse import parse_qsl, urlsplit

import apsw

from hocket.errors import HocketError, StoreAway, StoreError, StoreLocked, StoreMoved, Usage
from hocket.store.connections import DB_TOKEN, LOCK_WAIT_S, TOKEN_PARAMETER
from hocket.store.sqlite.session import MOVED_TO

_PORTS = {"https": 443, "http": 80}
_PARAMETERS = {"tls", TOKEN_PARAMETER}


class ServerAddress(NamedTuple):
    """`path` stands before those of the protocol. `shown` has no token."""

    host: str
    port: int
    is_tls: bool
    path: str
    shown: str
    token: str | None = None

    def is_origin_of(self, url: str) -> bool:
        """Whether the address names a place at this very server."""
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme)
        except ValueError:
            return False
        is_plain = "@" not in parts.netloc and parts.path.isascii() and parts.path.isprintable()
        scheme = "https" if self.is_tls else "http"
        return is_plain and (parts.scheme, parts.hostname, port) == (scheme, self.host, self.port)

    def __repr__(self) -> str:
        return f"ServerAddress({self.shown!r})"


def read_address(url: str) -> ServerAddress:
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        host, port = parts.hostname, parts.port
        if not host or parts.fragment or "@" in parts.netloc or not {name for name, _ in given} <= _PARAMETERS:
            raise ValueError("a part is missing, or is not one of ours")
    except ValueError:
        # The reason would repeat a part of the address, which may be one of the token.
        raise Usage(
            "cannot read the store's address; write libsql://host, libsql://host:port?tls=0, https://host or"
            f" http://host:port, without a user, and put the token into {DB_TOKEN}"
        ) from None
    settings = dict(given)
    tls = settings.get("tls", "0" if parts.scheme == "http" else "1")
    if tls not in ("0", "1") or (parts.scheme != "libsql" and "tls" in settings):
        raise Usage("bad tls in the store's address: it is for libsql://, and is 0 or 1")
    is_tls = tls == "1"
    if parts.scheme == "libsql" and not is_tls and port is None:
        raise Usage("a store's address with tls=0 needs a port: libsql://host:port?tls=0")
    path = parts.path.rstrip("/")
    name = f"[{host}]" if ":" in host else host
    place = name if port is None else f"{name}:{port}"
    shown = f"{parts.scheme}://{place}{path}" + ("?tls=0" if parts.scheme == "libsql" and not is_tls else "")
    token = settings.get(TOKEN_PARAMETER) or os.environ.get(DB_TOKEN, "").strip() or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise Usage(f"bad {DB_TOKEN}: a token has printable ASCII characters only, and no spaces")
    return ServerAddress(host, port or _PORTS["https" if is_tls else "http"], is_tls, path, shown, token)


# The server's codes for a transaction that it has ended.
STREAM_EXPIRED, TRANSACTION_TIMEOUT = "STREAM_EXPIRED", "TRANSACTION_TIMEOUT"
# The server's code for an answer that is too large for a batch.
TOO_LARGE = "RESPONSE_TOO_LARGE"
_MESSAGE_CHARS_MAX = 200
_PART_CHARS = 6

_ERRORS: dict[str, type[apsw.Error]] = {
    "SQLITE_AUTH": apsw.AuthError,
    "SQLITE_BUSY": apsw.BusyError,
    "SQLITE_CANTOPEN": apsw.CantOpenError,
    "SQLITE_CONSTRAINT": apsw.ConstraintError,
    "SQLITE_CORRUPT": apsw.CorruptError,
    "SQLITE_FULL": apsw.FullError,
    "SQLITE_IOERR": apsw.IOError,
    "SQLITE_LOCKED": apsw.BusyError,
    "SQLITE_NOTADB": apsw.NotADBError,
    "SQLITE_READONLY": apsw.ReadOnlyError,
    "BLOCKED": apsw.ReadOnlyError,
}


class Broken(Exception):
    """A connection or a stream has ended, and with it the transaction. It `is_repeatable` if the server has got nothing
    of the request.
    """

    def __init__(self, shown: str, code: str, message: str, *, is_repeatable: bool = False) -> None:
        super().__init__(f"{shown}: {message}")
        self.code, self.message, self.is_repeatable = code, message, is_repeatable


class BadAnswer(Broken):
    """The server's answer is not one of libSQL's, or is too large."""

    def __init__(self, shown: str, why: str) -> None:
        super().__init__(shown, "", why)


def statement_error(shown: str, code: str, message: str) -> Exception:
    if code in (TRANSACTION_TIMEOUT, STREAM_EXPIRED):
        return Broken(shown, code, message)
    message = message.removeprefix("SQLite error: ")
    return _ERRORS.get(code, apsw.SQLError)(message)


def connecting(shown: str, error: OSError) -> StoreError:
    """The error of a connection that could not be made."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"its certificate is not trusted ({error.verify_message}); name the authority with SSL_CERT_FILE"
        return StoreError(f"cannot connect to {shown}: {why}")
    if isinstance(error, ssl.SSLError):
        why = f"no TLS there ({error.reason or error}); check the port, or write ?tls=0 or http:// if it is meant"
        return StoreError(f"cannot connect to {shown}: {why}")
    if isinstance(error, socket.gaierror):
        return StoreError(f"cannot connect to {shown}: {_reason(error)}; check the host's name")
    return StoreAway(f"cannot connect to {shown}: {_reason(error)}; is the server running there?")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).strip()


def answered_badly(address: ServerAddress, response: http.client.HTTPResponse, content: bytes) -> Exception:
    """The error of an answer with a status other than 200."""
    shown, status, (code, said) = address.shown, response.status, _said(address, content)
    if code == STREAM_EXPIRED or "baton" in said:
        return Broken(shown, STREAM_EXPIRED, said, is_repeatable=True)
    if status == 403 and "Write permission" in said:
        return apsw.ReadOnlyError(said)
    if status in (401, 403):
        which = "there is no token" if address.token is None else f"the token is refused ({said or status})"
        return StoreError(f"cannot connect to {shown}: {which}; put a token of that database into {DB_TOKEN}")
    if 300 <= status < 400:
        return StoreError(f"{shown} leads elsewhere (HTTP {status}); give the address of the libSQL server itself")
    if "Namespace" in said:
        return StoreError(f"cannot connect to {shown}: {said}; check the host, whose first part names the database")
    if "utf-8" in said:
        return apsw.CorruptError(said)
    if status < 500:
        return StoreError(f"{shown} is not a libSQL server (HTTP {status}); check the address and the port")
    return Broken(shown, "", f"HTTP {status} {said}".strip())


def _said(address: ServerAddress, content: bytes) -> tuple[str, str]:
    """The code and the message in an answer; a page of HTML has none."""
    text = content.decode("utf-8", "replace").strip()
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return "", "" if text.startswith("<") else repeated(address, text)
    if not isinstance(answer, dict):
        return "", ""
    return str(answer.get("code", "")), repeated(address, str(answer.get("message", answer.get("error", ""))))


def repeated(address: ServerAddress, text: str) -> str:
    """A line of a server's text as it may be shown: without any part of the token, which the server has seen."""
    line = (text[: 8 * _MESSAGE_CHARS_MAX].splitlines() or [""])[0]
    line = "".join(each if each.isprintable() else "?" for each in line)
    if address.token is not None:
        line = _without(line, address.token)
    return line[:_MESSAGE_CHARS_MAX]


def _without(line: str, token: str) -> str:
    """Parts of so few characters as are left tell nothing."""
    size = min(_PART_CHARS, len(token))
    secret = [False] * len(line)
    for at in range(len(line) - size + 1):
        if line[at : at + size].lower() in token.lower():
            secret[at : at + size] = [True] * size
    return "".join("*" if hidden else each for each, hidden in zip(line, secret, strict=True))


def raise_explained(shown: str, error: BaseException) -> NoReturn:
    """Raises an error of the server as a sentence for the user, and every other error as it is."""
    sentence = _explained(shown, error)
    if sentence is None:
        raise error
    raise sentence from error


def _explained(shown: str, error: BaseException) -> HocketError | None:
    if isinstance(error, BadAnswer):
        why = f"is not a libSQL server that can be used: {error.message}"
        return StoreError(f"{shown} {why}; check the address and the server")
    if isinstance(error, Broken):
        return StoreAway(f"{shown} {_ENDED.get(error.code, _BROKE).format(error=error.message)}")
    if isinstance(error, apsw.BusyError):
        return StoreLocked(f"{shown} was locked by other transactions for {LOCK_WAIT_S} seconds; repeat the change")
    if isinstance(error, apsw.ConstraintError) and MOVED_TO in str(error):
        return StoreMoved(shown, str(error).partition(MOVED_TO)[2])
    for kinds, sentence in _SENTENCES:
        if isinstance(error, kinds):
            kind = StoreAway if isinstance(error, apsw.FullError) else StoreError
            return kind(f"{shown} {sentence.format(error=error)}")
    if isinstance(error, _MISFITS) and _is_from_store(error):
        return StoreError(f"{shown} gave rows that do not fit what was asked; check the address and the server")
    return None


# The modules that check what they read from a server. An error of theirs is a bug.
_CHECKED = tuple(f"hocket.store.libsql.{name}" for name in ("answers", "connection", "hrana"))
# What the code of a store raises over rows with other columns than it has asked for.
_MISFITS = (TypeError, ValueError, LookupError, AttributeError, OverflowError)


def _is_from_store(error: BaseException) -> bool:
    """Whether the code of a store has raised it, and not that of a caller."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return where.startswith("hocket.store.") and where not in _CHECKED


_BROKE = "broke off ({error}); the change was not kept, check the server and repeat it"
_ENDED = {
    STREAM_EXPIRED: "ended a transaction in which this process did nothing for 10 seconds, or restarted; the change was"
    " not kept, repeat it",
    TRANSACTION_TIMEOUT: "ended a transaction that took longer than 5 seconds while another one waited; the change was"
    " not kept, repeat it",
}
_SENTENCES: tuple[tuple[tuple[type[apsw.Error], ...], str], ...] = (
    (
        (apsw.CorruptError, apsw.NotADBError),
        "is damaged ({error}); run `hocket node doctor` to see what is wrong, and restore a backup if need be",
    ),
    (
        (apsw.ReadOnlyError, apsw.AuthError),
        f"does not let this token write ({{error}}); put a token with the right to write into {DB_TOKEN}",
    ),
    ((apsw.FullError,), "has no space left on its disk; the change was not kept, free some space and repeat it"),
    ((apsw.IOError, apsw.CantOpenError), "could not read or write its disk ({error}); check the server, then repeat"),
    ((apsw.SQLError,), "refused a statement ({error}); run `hocket node doctor` to see whether its tables are damaged"),
)
