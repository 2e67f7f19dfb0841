"""Looks from inside a sandbox at what a command of another node could reach, with the mounts and limits that such a
command gets. It tries; it does not derive the answer from the arguments of the sandbox.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import msgspec

from hocket.api.checks import Findings
from hocket.errors import Usage
from hocket.extensions.command import sandbox
from hocket.extensions.command.allowance import configured
from hocket.extensions.command.job import secret_paths
from hocket.extensions.command.sandbox import OPTIONAL, SYSTEM
from hocket.kernel.decoding import decode_json
from hocket.node.home import Home
from hocket.system import NO_COMMANDS, has_process_control

# How many files below the owner's paths are looked at for keys, and how many findings of a kind are reported.
FILES_MAX = 20_000
SHOWN_MAX = 10
# A file is opened for writing and nothing is written: these would take effect at once.
_SETTINGS = ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger")

_LOOK = """
import ctypes, json, os, socket, sys
asked = json.loads(sys.argv[1])
found = {"shown": [], "readable": [], "writable": [], "keys": [], "loopback": False, "abstract": False, "users": False}

def opens(path, flags):
    try:
        os.close(os.open(path, flags | os.O_CLOEXEC))
        return True
    except OSError:
        return False

def connects(family, address):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as line:
            line.settimeout(2)
            line.connect(address)
            return True
    except OSError:
        return False

def is_key(path):
    if path.endswith((".creds", ".pgpass", "/id_rsa", "/id_ed25519", "/id_ecdsa")):
        return opens(path, os.O_RDONLY)
    try:
        with open(path, "rb") as file:
            return b"PRIVATE KEY-----" in file.read(65536)
    except OSError:
        return False

found["shown"] = sorted("/" + name for name in os.listdir("/"))
for path in asked["hidden"]:
    if os.path.isdir(path):
        try:
            is_seen = bool(os.listdir(path))
        except OSError:
            is_seen = False
    else:
        is_seen = opens(path, os.O_RDONLY)
    if is_seen:
        found["readable"].append(path)
found["writable"] = [path for path in asked["settings"] if opens(path, os.O_WRONLY)]
left = asked["files_max"]
for root in asked["roots"]:
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            left -= 1
            if left > 0 and name.endswith((".key", ".pem", ".creds", ".pgpass", "id_rsa", "id_ed25519", "id_ecdsa")):
                if os.path.isfile(path) and is_key(path):
                    found["keys"].append(path)
        if left <= 0:
            break
found["loopback"] = connects(socket.AF_INET, ("127.0.0.1", asked["port"]))
found["abstract"] = connects(socket.AF_UNIX, chr(0) + asked["name"])
found["users"] = ctypes.CDLL(None).unshare(0x10000000) == 0
print(json.dumps(found))
"""


class Sight(msgspec.Struct, frozen=True):
    """What a command inside sees: the top of the file system; which secrets it can read, settings of the kernel it can
    write, and files that look like keys; whether it reaches ports and abstract sockets of this machine; and whether it
    can make a namespace of `users`.
    """

    shown: list[str]
    readable: list[str]
    writable: list[str]
    keys: list[str]
    loopback: bool
    abstract: bool
    users: bool

    def warnings(self, has_network: bool) -> Iterator[str]:
        """What a command of another node should not be able to do, as sentences."""
        for what, paths in (
            ("read the secret", self.readable),
            ("change the kernel's setting", self.writable),
            ("read what looks like a key:", self.keys),
        ):
            for path in paths[:SHOWN_MAX]:
                yield f"a command of another node can {what} {path}"
        if not has_network and (self.loopback or self.abstract):
            yield "a command of another node can reach the ports and abstract sockets of this machine"
        if self.users:
            yield "a command of another node can make user namespaces, in which faults of the kernel are easier to use"


def look_inside(paths: tuple[str, ...], hidden: tuple[str, ...], has_network: bool) -> Sight:
    """Raises Usage if no sandbox can be made, or the look fails."""
    python, library = os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)
    name = f"hocket-{os.urandom(8).hex()}"
    with closing(socket.create_server(("127.0.0.1", 0))) as port, closing(socket.socket(socket.AF_UNIX)) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        request = {
            "hidden": hidden,
            "settings": _SETTINGS,
            "roots": [*paths, OPTIONAL, "/etc"],
            "files_max": FILES_MAX,
            "port": port.getsockname()[1],
            "name": name,
        }
        argv = (python, "-I", "-S", "-c", _LOOK, msgspec.json.encode(request).decode())
        try:
            ran = sandbox.run_inside(sandbox.check(), argv, (library, *paths), hidden, has_network)
            sight = decode_json(ran.stdout, Sight)
        except msgspec.DecodeError:
            last = ran.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise Usage(f"the look into the sandbox failed: {''.join(last) or 'it printed nothing'}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Usage(f"the look into the sandbox failed: {error}") from None
    # Commands do not see the interpreter of this look, unless it is the system's.
    top = _top(library)
    if any(_top(path) == top for path in (*SYSTEM, OPTIONAL, *paths)):
        return sight
    return msgspec.structs.replace(sight, shown=[path for path in sight.shown if path != top])


# What `hocket node doctor` checks.


def check_commands(home: Home) -> Findings:
    """Whether the configuration allows other nodes more than the owner may have meant."""
    if not has_process_control():
        yield ("ok", NO_COMMANDS)
        return
    allowance = configured(home.configuration)
    warnings = [*allowance.warnings()]
    if allowance.is_empty:
        yield ("ok", "the configuration allows no commands of other nodes")
    elif not warnings:
        yield ("ok", "commands of other nodes run in a sandbox, and no pattern allows everything")
    yield from (("warn", each) for each in warnings)


def check_sandbox(home: Home) -> Findings:
    """What a command of another node could reach here, tried from inside."""
    try:
        allowance = configured(home.configuration)
    except Usage:
        return  # the check of commands says why
    if not has_process_control() or allowance.sandbox == "off" or not sandbox.available():
        return
    hidden = secret_paths(home, allowance.hide)
    try:
        sight = look_inside(allowance.paths, hidden, allowance.network)
    except Usage as error:
        yield ("warn", str(error))
        return
    network = "the network" if allowance.network else "no network"
    yield ("ok", f"a command of another node sees {network}, and can read {', '.join(sight.shown)}")
    yield from (("warn", each) for each in sight.warnings(allowance.network))


def _top(path: str) -> str:
    return f"/{path.split('/')[1]}"
