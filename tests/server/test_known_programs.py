"""Tokens are read again only when something may have changed: each way in which a token can lose its rights is tried on
one that was just recognised.
"""

import os
from collections.abc import Iterator

import pytest

import hocket.testing
from hocket.api import Service, programs
from hocket.api.programs import UnknownToken
from hocket.server import known_programs
from hocket.server.known_programs import KnownPrograms


class World:
    def __init__(self, service: Service, advance) -> None:  # type: ignore[no-untyped-def]
        self.service, self.advance, self.now = service, advance, 0.0
        self.programs = KnownPrograms(service, "c" * 40, lambda: self.now)


@pytest.fixture
def world() -> Iterator[World]:
    with hocket.testing.node() as node:
        yield World(Service(node.runtime), node.clock.advance)


def test_a_token_is_read_once_a_second(world: World):
    token = programs.create(world.service, "ci", ["mesh:read"]).token
    assert world.programs.known(token) is None
    made = world.programs.recognise(token)
    assert world.programs.known(token) is made and made.may("Mesh", "Read")
    assert world.programs.known(token[:-1]) is None
    world.now += known_programs.BELIEVED_S
    assert world.programs.known(token) is None


def test_a_revoked_token_is_not_believed_for_a_moment(world: World):
    token, other = (programs.create(world.service, name, ["mesh:read"]).token for name in ("ci", "cd"))
    for each in (token, other):
        world.programs.recognise(each)
    programs.revoke(world.service, "ci")
    assert world.programs.known(token) is None
    with pytest.raises(UnknownToken, match="revoked"):
        world.programs.recognise(token)
    assert world.programs.recognise(other).name == "cd" and world.programs.known(other) is not None


def test_an_expired_token_is_not_believed_for_a_moment(world: World):
    token = programs.create(world.service, "short", ["mesh:read"], 500).token
    world.programs.recognise(token)
    assert world.programs.known(token) is not None
    world.advance(0.6)
    assert world.programs.known(token) is None


def test_other_permissions_of_the_node_count_at_once(world: World, monkeypatch: pytest.MonkeyPatch):
    token = programs.create(world.service, "ci", ["mesh:read"]).token
    world.programs.recognise(token)
    reader = world.service.runtime.log.permissions_reader
    monkeypatch.setattr(reader, "latest", object())
    assert world.programs.known(token) is None


def test_the_operators_own_secret_is_known_too(world: World):
    assert world.programs.recognise("c" * 40).agent is None
    assert world.programs.known("c" * 40) is not None


def test_only_so_many_tokens_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(known_programs, "KNOWN_MAX", 2)
    tokens = [programs.create(world.service, f"t{n}", ["mesh:read"]).token for n in range(3)]
    for each in tokens:
        world.programs.recognise(each)
    assert [world.programs.known(each) is None for each in tokens] == [True, True, False]


def test_the_mark_of_a_revocation_is_for_the_owner_alone(world: World):
    programs.create(world.service, "ci", ["mesh:read"])
    programs.revoke(world.service, "ci")
    assert os.stat(world.service.runtime.home.path / "revoked_tokens").st_mode & 0o077 == 0
