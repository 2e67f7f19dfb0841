"""Passwords in the addresses of stores. They belong into the variables and files that libpq reads."""

import re

_USER = re.compile(r"(?<=://)([^/?#@:]*):([^/?#]*)@")
_PARAMETER = re.compile(r"(?<=[?&])(password|sslpassword)=[^&#]*&?")


def without_password(address: str) -> str:
    return _PARAMETER.sub("", _USER.sub(r"\1@", address)).rstrip("?&")


def has_password(address: str) -> bool:
    return without_password(address) != address.rstrip("?&")
