"""The worker keys whose results in git repositories this node trusts: its own, those of mesh nodes that may complete
jobs, and those that the owner added.
"""

from typing import Literal

from hocket.api import Service, ServiceAnswer
from hocket.extensions.git.trust import TrustedKeys, keys_of_mesh, parse_worker
from hocket.kernel.keys import key_text, parse_key


class TrustedKey(ServiceAnswer, frozen=True):
    key: str
    because: Literal["this node", "mesh", "added"]
    name: str | None


def listing(service: Service) -> list[TrustedKey]:
    with service.read() as session:
        mesh = keys_of_mesh(service.runtime.log, session)
    own = service.runtime.home.node_key().public
    found = [TrustedKey(key_text(own), "this node", mesh.get(own) or None)]
    found += [TrustedKey(key_text(key), "mesh", name or None) for key, name in mesh.items() if key != own]
    return found + [TrustedKey(key_text(key), "added", name or None) for key, name in _written(service).read().items()]


def trusted(service: Service) -> set[bytes]:
    return {parse_key(each.key) for each in listing(service)}


def add(service: Service, key: str, name: str) -> tuple[str, bool]:
    """Returns the key in canonical form, and whether it is new on the list."""
    service.check_writer()
    public = parse_worker(key)
    return key_text(public), _written(service).add(public, name)


def remove(service: Service, key: str) -> tuple[str, bool]:
    """Returns the key in canonical form, and whether it was on the list."""
    service.check_writer()
    public = parse_worker(key)
    return key_text(public), _written(service).remove(public)


def _written(service: Service) -> TrustedKeys:
    return TrustedKeys(service.runtime.home.git_trusted)
