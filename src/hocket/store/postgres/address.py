"""Where a PostgreSQL store is. An address is one of libpq's, `postgresql://user@host:port/database?sslmode=require`,
and libpq's variables (PGPASSFILE, PGSERVICE, PGHOST, …) fill in the rest. The parameter `schema` is ours. A password
never appears in a message.
"""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hocket.errors import Usage

SCHEMA_DEFAULT = "hocket"
# How long to wait for a connection, unless the address or libpq's variable says so.
CONNECT_S = 10
_SCHEMA = "schema"
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class DatabaseAddress(NamedTuple):
    """`conninfo` is for libpq and may contain a password; `shown` does not. `is_pooled` is known after the first
    connection: a pooler stands before the server.
    """

    conninfo: str
    schema: str
    shown: str
    is_pooled: bool = False


def read_address(url: str) -> DatabaseAddress:
    base, _, query = url.partition("?")
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        rest = urlencode([(name, value) for name, value in given if name != _SCHEMA], quote_via=quote)
        conninfo = f"{base}?{rest}" if rest else base
        settings = conninfo_to_dict(conninfo)
        if not re.fullmatch(r"[0-9,]*", str(settings.get("port", ""))) or "@" in str(settings.get("dbname", "")):
            raise ValueError("the password has a slash, and a part of it passes for the port or the database")
    except (ValueError, psycopg.Error):
        # The reason would repeat a part of the address, which may be one of the password.
        raise Usage(
            "cannot read the store's address; write postgresql://user@host:port/database, with special characters"
            " percent-encoded and only parameters that libpq knows"
        ) from None
    schema = dict(given).get(_SCHEMA, SCHEMA_DEFAULT)
    if not _SCHEMA_NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise Usage(
            f"bad schema {schema!a} in the store's address: use small letters, digits and _, up to 63 characters"
        )
    if "connect_timeout" not in settings and "PGCONNECT_TIMEOUT" not in os.environ:
        conninfo = make_conninfo(conninfo, connect_timeout=CONNECT_S)
    known = make_conninfo(conninfo, fallback_application_name="hocket")
    return DatabaseAddress(known, schema, _shown(settings, schema))


def _shown(settings: Mapping[str, object], schema: str) -> str:
    user = f"{settings['user']}@" if "user" in settings else ""
    port = f":{settings['port']}" if "port" in settings else ""
    place = "" if schema == SCHEMA_DEFAULT else f"?{_SCHEMA}={schema}"
    return f"postgresql://{user}{settings.get('host', '')}{port}/{settings.get('dbname', '')}{place}"
