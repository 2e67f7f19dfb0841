"""Errors of a libSQL server: those of a statement as apsw's, since it is SQLite that raises them, and all of them as
sentences for the user, which name the store by its address without the token and say what to do.
"""

import http.client
import json
import socket
import ssl
from typing import NoReturn

import apsw

from hocket.errors import HocketError, StoreAway, StoreError, StoreLocked, StoreMoved
from hocket.store.libsql.address import ServerAddress
from hocket.store.secrecy import DB_TOKEN
from hocket.store.sqlite.session import MOVED_TO

LOCK_WAIT_S = 30.0
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
        return StoreLocked(f"{shown} was locked by other transactions for {LOCK_WAIT_S:.0f} seconds; repeat the change")
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
        "is damaged ({error}); run `hocket doctor` to see what is wrong, and restore a backup if need be",
    ),
    (
        (apsw.ReadOnlyError, apsw.AuthError),
        f"does not let this token write ({{error}}); put a token with the right to write into {DB_TOKEN}",
    ),
    ((apsw.FullError,), "has no space left on its disk; the change was not kept, free some space and repeat it"),
    ((apsw.IOError, apsw.CantOpenError), "could not read or write its disk ({error}); check the server, then repeat"),
    ((apsw.SQLError,), "refused a statement ({error}); run `hocket doctor` to see whether its tables are damaged"),
)
