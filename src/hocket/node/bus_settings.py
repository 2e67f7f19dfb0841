"""Which servers carry a node's messages: `--bus`, else $HOCKET_BUS, else `url` in the table [bus] of the home's
config.toml. Without any of them, messages stay on this machine. Credentials are in a file, and so are the authorities
that TLS trusts.
"""

import tomllib
from pathlib import Path
from typing import NamedTuple

from hocket.bus.nats_access import NatsAccess, read_access, read_servers, shown
from hocket.errors import Usage
from hocket.node.home import Home, exposure
from hocket.node.variables import BUS, BUS_CA, BUS_CREDENTIALS, given

_URL, _CREDENTIALS, _CA = "url", "credentials", "ca"
_VARIABLES = {_URL: BUS, _CREDENTIALS: BUS_CREDENTIALS, _CA: BUS_CA}


class BusSettings(NamedTuple):
    servers: list[str]
    access: NatsAccess

    def __str__(self) -> str:
        return ",".join(map(shown, self.servers))


def bus_settings(home: Home, url: str | None = None) -> BusSettings | None:
    """Raises Usage, which names the setting and repeats no secret."""
    table = _configured(home.configuration)
    chosen = {key: given(variable) or table.get(key) for key, variable in _VARIABLES.items()}
    text = url or chosen[_URL]
    if text is None:
        return None
    where = "--bus" if url else BUS if given(BUS) else f"bus.url in {home.configuration}"
    try:
        servers = read_servers(text)
    except Usage as error:
        raise Usage(f"bad {where}: {error}") from None
    credentials, ca = (chosen[key] and Path(str(chosen[key])).expanduser() for key in (_CREDENTIALS, _CA))
    if credentials and credentials.is_file() and (exposed := exposure(credentials)):
        raise Usage(exposed)
    return BusSettings(servers, read_access(servers, credentials or None, ca or None))


def credentials_path(home: Home) -> Path | None:
    path = given(BUS_CREDENTIALS) or _configured(home.configuration).get(_CREDENTIALS)
    return None if path is None else Path(path).expanduser()


def _configured(path: Path) -> dict[str, str]:
    try:
        table = tomllib.loads(path.read_text("utf-8")).get("bus", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Usage(f"cannot read {path}: {error}") from None
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise Usage(f'{path}: bus must be a table of texts, like [bus] with url = "nats://host:4222"')
    for key in table:
        if key not in _VARIABLES:
            raise Usage(f"{path}: unknown key bus.{key}; known are {', '.join(_VARIABLES)}")
    return table
