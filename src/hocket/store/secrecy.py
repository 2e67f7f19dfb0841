"""Passwords and tokens in the addresses of stores. They belong into the variables and files that libpq reads, and into
the variable of the token.
"""

import re

# The variable with the token of a store in libSQL.
DB_TOKEN = "HOCKET_DB_TOKEN"
# How libSQL's own programs call it in an address.
TOKEN_PARAMETER = "authToken"

_USER = r"(?<=://)([^/?#@:]*):([^/?#]*)@"
_PARAMETER = rf"(?<=[?&])(password|sslpassword|{TOKEN_PARAMETER})=[^&#]*&?"


def without_password(address: str) -> str:
    return re.sub(_PARAMETER, "", re.sub(_USER, r"\1@", address)).rstrip("?&")


def has_password(address: str) -> bool:
    return without_password(address) != address.rstrip("?&")
