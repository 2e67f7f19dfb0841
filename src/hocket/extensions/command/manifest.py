"""The manifest of a command: what to run, with which inputs, for how long. It may be written in YAML or JSON; its
content id is the hash of its canonical form. The format is that of GATOS' job plane. Three names in `env` tell the
runner more and stay within that format: HOCKET_INPUTS, HOCKET_OUTPUTS and HOCKET_SANDBOX.
"""

import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Literal, TypeVar, cast

import msgspec

from hocket.kernel.ids import content_hash, parse_ulid, ulid_text
from hocket.kernel.jws import canonical_plain
from hocket.kernel.yaml_subset import BadText, read_text

T = TypeVar("T")

TIMEOUT_S_MAX = 2**53 - 1
SIZE_MAX = 2**53 - 1
INPUTS_NAME = "HOCKET_INPUTS"
OUTPUTS_NAME = "HOCKET_OUTPUTS"
SANDBOX_NAME = "HOCKET_SANDBOX"
ON_NAME = "HOCKET_ON"
AGAIN_NAME = "HOCKET_AGAIN"
OUTPUTS_DEFAULT = ("outputs/**",)
_SHOWN_CHARS = 60
_SHOWN_BITS_MAX = 192
_NODE_ID = re.compile("[0-9a-f]{16}")

_ENV_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_BLAKE3 = re.compile("(?:blake3:)?([0-9a-f]{64})")
_POLICY_ROOT = re.compile("sha256:[0-9a-f]{64}")
_NUMBER = r"([0-9]{1,20}(?:[.,][0-9]{1,20})?)"
_DURATION = re.compile(f"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(T(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?")
_UNITS_S = (7 * 86_400, 86_400, 3_600, 60, 1)

Sandbox = Literal["off", "on", "network"]


class BadManifest(ValueError):
    """`field` is where the error is, like `env.PATH` or `inputs[2].hash`; empty if the text cannot be read at all."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class Pointer(msgspec.Struct, frozen=True):
    """An input, by its BLAKE3 hash. `written` is how the hash was spelled, with or without the algorithm's name: the
    spelling is part of what is hashed.
    """

    hash: bytes
    size: int | None
    written: str


class Manifest(msgspec.Struct, frozen=True):
    """`None` is a field that was left out, which is not the same as an empty one. A timeout of 0 means none of its
    own.
    """

    command: tuple[str, ...]
    args: tuple[str, ...]
    timeout: int
    env: dict[str, str] | None = None
    cwd: str | None = None
    inputs: tuple[Pointer, ...] | None = None
    policy_root: str | None = None
    ulid: str | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        return self.command + self.args

    @property
    def input_paths(self) -> tuple[str, ...]:
        """Where each input is put, below the job's directory."""
        names = _parts(self.env, INPUTS_NAME)
        pointers = self.inputs or ()
        names += ("",) * (len(pointers) - len(names))
        return tuple(name or f"inputs/{pointer.hash.hex()}" for name, pointer in zip(names, pointers, strict=True))

    @property
    def output_patterns(self) -> tuple[str, ...]:
        """Which files are collected, below the job's directory."""
        return _parts(self.env, OUTPUTS_NAME) or OUTPUTS_DEFAULT

    @property
    def sandbox(self) -> Sandbox:
        return cast(Sandbox, (self.env or {}).get(SANDBOX_NAME, "off"))

    @property
    def on(self) -> str | None:
        """The id of the one node that should run it."""
        return (self.env or {}).get(ON_NAME)


def read_manifest(text: bytes) -> Manifest:
    """From YAML or JSON."""
    try:
        value = read_text(text)
    except BadText as error:
        raise BadManifest("", f"the manifest cannot be read: {error}") from None
    return parse_manifest(value)


def parse_manifest(value: object) -> Manifest:
    """From what a JSON reader gives."""
    if not isinstance(value, dict):
        raise BadManifest("", f"a manifest must be a mapping of command, args, timeout and more, not {_shown(value)}")
    for name in value:
        if name not in _FIELDS:
            raise BadManifest(_shown(name).strip("'"), f"unknown field; known are {', '.join(_FIELDS)}")
    for name in ("command", "timeout"):
        if name not in value:
            raise BadManifest(name, "the field is missing")
    manifest = Manifest(**{"args": ()} | {name: _FIELDS[name](name, value[name]) for name in value})
    _check_runner_names(manifest)
    return manifest


def manifest_json(manifest: Manifest) -> dict[str, Any]:
    """As JSON, with every field that is there."""
    found: dict[str, Any] = {
        "command": list(manifest.command),
        "args": list(manifest.args),
        "timeout": manifest.timeout,
    }
    if manifest.env is not None:
        found["env"] = dict(manifest.env)
    if manifest.cwd is not None:
        found["cwd"] = manifest.cwd
    if manifest.inputs is not None:
        found["inputs"] = [_pointer_json(each) for each in manifest.inputs]
    if manifest.policy_root is not None:
        found["policy_root"] = manifest.policy_root
    if manifest.ulid is not None:
        found["ulid"] = manifest.ulid
    return found


def canonical(manifest: Manifest) -> bytes:
    """The bytes that are hashed. They do not include the ulid, which is only an alias."""
    found = manifest_json(manifest)
    found.pop("ulid", None)
    return canonical_plain(found)


def content_id(manifest: Manifest) -> bytes:
    return content_hash(canonical(manifest))


# The fields, each read by a function of its name and its value.


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadManifest(field, f"it must be a text, not {_shown(value)}; quote it, or leave the field out")
    if "\0" in value:
        raise BadManifest(field, f"{_shown(value)} has a NUL character, which cannot be passed to a program")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadManifest(field, f"{_shown(value)} has half a surrogate pair, which UTF-8 cannot encode") from None
    return value


def _list(field: str, value: object, read: Callable[[str, object], T]) -> tuple[T, ...]:
    if not isinstance(value, list | tuple):
        raise BadManifest(field, f"it must be a list, not {_shown(value)}")
    return tuple(read(f"{field}[{place}]", each) for place, each in enumerate(value))


def _command(field: str, value: object) -> tuple[str, ...]:
    found = _list(field, value, _text)
    if not found or not found[0]:
        raise BadManifest(field, "the program to run is missing; write a list that begins with its name")
    return found


def _args(field: str, value: object) -> tuple[str, ...]:
    return _list(field, value, _text)


def _timeout(field: str, value: object) -> int:
    how = "write whole seconds from 0, or a duration like PT30S or P1DT12H"
    if isinstance(value, str):
        return _duration_s(field, value, how)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadManifest(field, f"{_shown(value)} is not a duration; {how}")
    if value > TIMEOUT_S_MAX:
        raise BadManifest(field, f"{_shown(value)} seconds are too many; at most {TIMEOUT_S_MAX}, or 0 for no limit")
    return value


def _duration_s(field: str, text: str, how: str) -> int:
    found = _DURATION.fullmatch(text)
    weeks_and_days, time = (found.groups()[:2], found.groups()[3:]) if found else ((), ())
    numbers = [*weeks_and_days, *time]
    given = [number for number in numbers if number is not None]
    if found is None or not given or found[3] == "T":
        raise BadManifest(field, f"{_shown(text)} is not a duration; {how} (years and months differ in length)")
    if any(not number.isdigit() for number in given[:-1]):
        raise BadManifest(field, f"{_shown(text)} has a fraction that is not in its last part; {how}")
    total = sum(
        Fraction(number.replace(",", ".")) * unit
        for number, unit in zip(numbers, _UNITS_S, strict=True)
        if number is not None
    )
    if Fraction(total).denominator != 1:
        raise BadManifest(field, f"{_shown(text)} is not a whole number of seconds; {how}")
    return _timeout(field, int(total))


def _env(field: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise BadManifest(field, f"it must be a mapping of names to texts, not {_shown(value)}")
    for name in value:
        if not isinstance(name, str) or _ENV_NAME.fullmatch(name) is None:
            raise BadManifest(
                f"{field}.{_shown(name)}", "not a variable name; use letters, digits and _, a digit not first"
            )
    return {name: _text(f"{field}.{name}", each) for name, each in value.items()}


def _cwd(field: str, value: object) -> str:
    return _inside(field, _text(field, value))


def _inputs(field: str, value: object) -> tuple[Pointer, ...]:
    return _list(field, value, _pointer)


def _pointer(field: str, value: object) -> Pointer:
    if not isinstance(value, dict):
        raise BadManifest(field, f"it must be a mapping of kind, algo, hash and size, not {_shown(value)}")
    for name in value:
        if name not in ("kind", "algo", "hash", "size"):
            raise BadManifest(f"{field}.{_shown(name)}", "unknown field; known are kind, algo, hash, size")
    for name, only in (("kind", "blobptr"), ("algo", "blake3")):
        if value.get(name) != only:
            raise BadManifest(f"{field}.{name}", f"only {only} is supported, not {_shown(value.get(name))}")
    written = value.get("hash")
    found = _BLAKE3.fullmatch(written) if isinstance(written, str) else None
    if found is None:
        raise BadManifest(
            f"{field}.hash",
            f"{_shown(written)} is not a BLAKE3 hash; write 64 lower-case hex digits, with or without blake3:",
        )
    size = value.get("size")
    if "size" in value and (not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= SIZE_MAX):
        raise BadManifest(f"{field}.size", f"{_shown(size)} is not a number of bytes; write a whole number from 0")
    return Pointer(bytes.fromhex(found[1]), size, str(written))


def _pointer_json(pointer: Pointer) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "blobptr", "algo": "blake3", "hash": pointer.written}
    return found if pointer.size is None else found | {"size": pointer.size}


def _policy_root(field: str, value: object) -> str:
    if _POLICY_ROOT.fullmatch(text := _text(field, value)) is None:
        raise BadManifest(field, f"{_shown(text)} is not a policy bundle; write sha256: and 64 lower-case hex digits")
    return text


def _ulid(field: str, value: object) -> str:
    try:
        if (text := ulid_text(parse_ulid(_text(field, value)))) == value:
            return text
        raise ValueError("another spelling")
    except BadManifest:
        raise
    except ValueError:
        raise BadManifest(
            field, f"{_shown(value)} is not a ULID; it has 26 capital letters and digits, never I, L, O or U"
        ) from None


_FIELDS: dict[str, Callable[[str, object], Any]] = {
    "command": _command,
    "args": _args,
    "timeout": _timeout,
    "env": _env,
    "cwd": _cwd,
    "inputs": _inputs,
    "policy_root": _policy_root,
    "ulid": _ulid,
}


# What the runner reads from `env`.


def _parts(env: dict[str, str] | None, name: str) -> tuple[str, ...]:
    found = (env or {}).get(name, "")
    return tuple(found.split(":")) if found else ()


def _check_runner_names(manifest: Manifest) -> None:
    where = f"env.{INPUTS_NAME}"
    names, count = _parts(manifest.env, INPUTS_NAME), len(manifest.inputs or ())
    if len(names) > count:
        raise BadManifest(where, f"it names {len(names)} inputs, but there are {count}")
    for name in filter(None, names):
        if any(step in ("", ".") for step in _inside(where, name).split("/")):
            raise BadManifest(where, f"{_shown(name)} has an empty part; write a path like data/model.bin")
    _check_places(where, zip(manifest.input_paths, manifest.inputs or (), strict=True))
    for pattern in _parts(manifest.env, OUTPUTS_NAME):
        _inside(f"env.{OUTPUTS_NAME}", pattern)
    if manifest.sandbox not in ("off", "on", "network"):
        raise BadManifest(f"env.{SANDBOX_NAME}", f"{_shown(manifest.sandbox)} is not off, on or network")
    if manifest.on is not None and _NODE_ID.fullmatch(manifest.on) is None:
        raise BadManifest(f"env.{ON_NAME}", f"{_shown(manifest.on)} is not a node's id of 16 hex digits")


def _check_places(where: str, placed: Iterable[tuple[str, Pointer]]) -> None:
    """Two inputs may not share a path, unless they are the same bytes; and a file cannot contain another."""
    files: dict[str, bytes] = {}
    for path, pointer in placed:
        if files.setdefault(path, pointer.hash) != pointer.hash:
            raise BadManifest(where, f"two inputs have the path {_shown(path)}")
    for path in files:
        steps = path.split("/")
        for above in ("/".join(steps[:length]) for length in range(1, len(steps))):
            if above in files:
                raise BadManifest(where, f"one input has the path {_shown(above)} and another a path below it")


def _inside(field: str, path: str) -> str:
    if not path or path.startswith("/") or ".." in path.split("/"):
        raise BadManifest(field, f"{_shown(path)} is not inside the job's directory; write a relative path without ..")
    return path


def _shown(value: object) -> str:
    """A value as an error shows it, shortened if it is long."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, dict | list | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS_MAX:
        return "a number of very many digits"  # Python takes quadratic time to print one, or refuses
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
