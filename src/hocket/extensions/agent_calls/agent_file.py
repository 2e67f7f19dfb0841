"""The agents that the owner of a home has named, in one file that only the owner can read: their tokens are in it."""

import ipaddress
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from hocket.errors import StoreError, Usage
from hocket.extensions.file_tasks import AGENTS_FILE as FILE
from hocket.kernel.decoding import decode_json

AGENTS_MAX = 100
URL_CHARS_MAX = 2_048
TOKEN_CHARS_MAX = 8_192
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class ForeignAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`url` is where the agent is, or its card."""

    name: str
    url: str
    token: str | None = None


def check_agent(agent: ForeignAgent) -> ForeignAgent:
    """Raises Usage. A token goes over TLS, or stays on this machine."""
    if _NAME.fullmatch(agent.name) is None:
        raise Usage(f"bad name {agent.name!r}: 1 to 63 small letters, digits and dashes, beginning with no dash")
    try:
        parts = urlsplit(agent.url)
        is_good = bool(parts.hostname) and parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or len(agent.url) > URL_CHARS_MAX or not agent.url.isascii() or not agent.url.isprintable():
        raise Usage(f"bad URL {agent.url!r}: write it like https://agents.example.com")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise Usage(f"bad URL {agent.url!r}: leave out user, password, query and fragment")
    token = agent.token or ""
    if len(token) > TOKEN_CHARS_MAX or not token.isascii() or not token.isprintable() or " " in token:
        raise Usage(f"a token has at most {TOKEN_CHARS_MAX} printable ASCII characters, and no space")
    if token and parts.scheme == "http" and not _is_here(parts.hostname or ""):
        raise Usage(f"a token for {parts.hostname} needs https: anybody on the way could read it")
    return agent


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_agents(home: Path) -> dict[str, ForeignAgent]:
    path = home / FILE
    try:
        return {each.name: each for each in decode_json(path.read_bytes(), list[ForeignAgent])}
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"cannot read {path}: {error}; mend it, or move it away") from None


def write_agents(home: Path, agents: dict[str, ForeignAgent]) -> None:
    path = home / FILE
    unfinished = path.with_name(f".{FILE}.{os.getpid()}.new")
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(list(agents.values())))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
