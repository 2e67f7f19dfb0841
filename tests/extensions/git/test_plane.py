"""The one suite of every kind of plane: refs, swaps, objects."""

import errno
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.errors import HocketError, NotAuthorised, StoreError, Unreachable, Usage
from hocket.extensions.git import git
from hocket.extensions.git.git import Git, git_environment, without_password
from hocket.extensions.git.objects import (
    DIRECTORY,
    FILE,
    Object,
    Repository,
    TreeEntry,
    Unreadable,
    commit_data,
    read_commit,
    read_tree,
    tree_data,
)
from hocket.extensions.git.plane import ROOT, Change, Plane
from hocket.extensions.git.planes import is_address, open_plane
from tests.extensions.git.places import Place, http_server, place
from tests.work.mesh import wait_for

WHO = "somebody <somebody@localhost>"


def put(plane: Plane, text: str, *parents: str) -> str:
    tree = plane.write("tree", tree_data([TreeEntry(FILE, "text", plane.write("blob", text.encode()))]))
    return plane.write("commit", commit_data(tree, parents, WHO, 1_700_000_000, f"{text}\n".encode()))


def ref(name: str) -> str:
    return f"{ROOT}{'ab' * 32}/{name}"


@pytest.mark.req("GT-04", "GT-06")
def test_refs_move_only_from_what_was_seen(anywhere: Place):
    plane = anywhere.open()
    assert plane.refs() == {}
    first, second = put(plane, "first"), put(plane, "second")
    assert plane.swap([Change(ref("job"), None, first)])
    assert plane.refs() == {ref("job"): first}
    assert not plane.swap([Change(ref("job"), None, second)])
    assert not plane.swap([Change(ref("job"), second, put(plane, "third"))])
    assert plane.refs() == {ref("job"): first}
    assert plane.swap([Change(ref("job"), first, second)])
    assert not plane.swap([Change(ref("job"), first, None)])
    assert plane.swap([Change(ref("job"), second, None)])
    assert plane.refs() == {}
    assert not plane.swap([Change(ref("job"), second, first)])


@pytest.mark.req("GT-04", "GT-06")
@pytest.mark.parametrize("lost", [{0}, {1}, {4}, {1, 2}, {0, 2, 4}, {0, 1, 2, 3, 4}, set()], ids=str)
def test_of_several_swaps_each_is_won_or_lost_by_itself(anywhere: Place, lost: set[int]):
    plane = anywhere.open()
    mine, other = put(plane, "mine"), put(plane, "other")
    for number in lost:
        assert plane.swap([Change(ref(f"claims/{number:064x}"), None, other)])
    swaps = [[Change(ref(f"claims/{number:064x}"), None, mine)] for number in range(5)]
    assert plane.swap_each(iter(swaps)) == [number not in lost for number in range(5)]
    assert plane.refs() == {ref(f"claims/{number:064x}"): other if number in lost else mine for number in range(5)}


@pytest.mark.req("GT-05")
def test_swaps_are_made_although_git_is_killed_in_between(here: Place):
    plane = here.open()
    commit = put(plane, "x")

    def swaps() -> Iterator[list[Change]]:
        for number in range(6):
            if number in (2, 5):
                # A git that is killed while it moves a ref leaves the lock of that ref behind.
                before = ref(f"claims/{number - 1:064x}")
                wait_for(lambda before=before: here.git("for-each-ref", before), "the swap before")
                plane._mover._process.kill()  # type: ignore[attr-defined]
                plane._mover._process.wait()  # type: ignore[attr-defined]
            yield [Change(ref(f"claims/{number:064x}"), None, commit)]

    assert plane.swap_each(swaps()) == [True] * 6
    assert len(plane.refs()) == 6


@pytest.mark.req("GT-05")
def test_a_swap_is_made_whole_or_not_at_all(anywhere: Place):
    plane = anywhere.open()
    first, second = put(plane, "first"), put(plane, "second")
    assert plane.swap([Change(ref("claim"), None, first), Change(ref("claims/cd"), None, first)])
    assert not plane.swap([Change(ref("result"), None, second), Change(ref("claim"), None, second)])
    assert not plane.swap([Change(ref("claim"), first, second), Change(ref("claims/cd"), second, put(plane, "third"))])
    assert plane.refs() == {ref("claim"): first, ref("claims/cd"): first}
    assert plane.swap([Change(ref("claim"), first, second), Change(ref("claims/cd"), first, None)])
    assert plane.refs() == {ref("claim"): second}


def test_the_same_swap_again_is_a_success(anywhere: Place):
    """A worker that did not hear the answer asks again."""
    plane = anywhere.open()
    first = put(plane, "first")
    changes = [Change(ref("claim"), None, first), Change(ref("claims/cd"), None, first)]
    assert plane.swap(changes) and plane.swap(changes)


def test_of_two_planes_one_is_first(anywhere: Place):
    one, other = anywhere.open(), anywhere.open()
    mine, theirs = put(one, "mine"), put(other, "theirs")
    assert one.refs() == other.refs() == {}
    assert one.swap([Change(ref("claim"), None, mine)])
    assert not other.swap([Change(ref("claim"), None, theirs)])
    assert other.refs() == {ref("claim"): mine}
    assert other.swap([Change(ref("claim"), mine, put(other, "after", mine))])
    assert not one.swap([Change(ref("claim"), mine, put(one, "too late", mine))])


def test_several_swaps_are_each_decided_on_their_own(anywhere: Place):
    plane = anywhere.open()
    names = [ref("job").replace("ab", f"{number:02x}") for number in range(5)]
    taken = put(plane, "taken")
    assert plane.swap_each([]) == []
    assert plane.swap_each([[Change(names[1], None, taken)]]) == [True]
    mine = [put(plane, f"mine {number}") for number in range(5)]
    assert plane.swap_each([Change(name, None, oid)] for name, oid in zip(names, mine, strict=True)) == [
        *(True, False, True, True, True)
    ]
    assert plane.refs() == dict(zip(names, mine, strict=True)) | {names[1]: taken}
    assert plane.swap_each([Change(name, oid, None)] for name, oid in plane.refs().items()) == [True] * 5
    with pytest.raises(ValueError):
        plane.swap_each([[Change(names[0], None, taken)], [Change("refs/heads/main", None, taken)]])
    assert plane.swap([Change(names[2], None, taken)])


def test_refs_below_a_name(anywhere: Place):
    plane = anywhere.open()
    first = put(plane, "first")
    other = ref("job").replace("ab", "cd")
    assert plane.swap([Change(ref("job"), None, first), Change(ref("claim"), None, first), Change(other, None, first)])
    assert plane.refs(ref("")) == {ref("job"): first, ref("claim"): first}
    assert plane.refs(ref("job")) == {ref("job"): first}
    assert plane.refs(ref("result")) == {}


def test_objects_of_others_are_read(anywhere: Place):
    one = anywhere.open()
    large = os.urandom(200_000)
    tree = one.write("tree", tree_data([TreeEntry(FILE, "large", one.write("blob", large))]))
    first = one.write("commit", commit_data(tree, [], WHO, 1, b"large\n"))
    second = put(one, "second", first)
    assert one.swap([Change(ref("claim"), None, second)])

    anywhere.cache = anywhere.cache.with_name("another cache")
    other = anywhere.open()
    assert other.refs() == {ref("claim"): second}
    found = other.read([second, first, tree])
    commit = found[second]
    assert isinstance(commit, Object) and read_commit(commit.data).parents == (first,)
    assert found[tree] == Object("tree", tree_data([TreeEntry(FILE, "large", one.write("blob", large))]))
    blob = one.write("blob", large)
    assert other.read([blob]) == {blob: Object("blob", large)}
    absent = "12" * other.digest_bytes
    missing = other.read([absent, first])
    assert isinstance(missing[absent], Unreadable) and missing[absent].is_missing
    assert isinstance(missing[first], Object)


@pytest.mark.parametrize("kind", ["file", "daemon", "http", "ssh"])
@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("filters", ["true", "false"])
def test_servers_of_every_age(kind: str, version: int, filters: str, tmp_path: Path):
    """An old protocol gives out only what refs point to; some servers do not leave anything out."""
    with place(kind, tmp_path) as here:
        here.git("config", "uploadpack.allowFilter", filters)
        one = here.open()
        large, small = one.write("blob", b"x" * 200_000), one.write("blob", b"small")
        tree = one.write("tree", tree_data([TreeEntry(FILE, "large", large), TreeEntry(FILE, "small", small)]))
        first = one.write("commit", commit_data(tree, [], WHO, 1, b"large\n"))
        second = put(one, "second", first)
        assert one.swap([Change(ref("claim"), None, second)])
        here.cache = here.cache.with_name("another")
        here.outside |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "protocol.version",
            "GIT_CONFIG_VALUE_0": str(version),
        }
        other = here.open()
        assert other.refs() == {ref("claim"): second}
        assert isinstance(other.read([second])[second], Object)
        assert other.read([large, small]) == {large: Object("blob", b"x" * 200_000), small: Object("blob", b"small")}
        assert other.swap([Change(ref("claim"), second, put(other, "third", second))])


def test_what_moved_on_is_fetched_again(anywhere: Place):
    one = anywhere.open()
    last = put(one, "0")
    assert one.swap([Change(ref("claim"), None, last)])
    anywhere.cache = anywhere.cache.with_name("another cache")
    other = anywhere.open()
    for number in range(1, 4):
        assert other.refs() == {ref("claim"): last}
        assert isinstance(other.read([last])[last], Object)
        last, before = put(one, str(number), last), last
        assert one.swap([Change(ref("claim"), before, last)])


def test_several_threads_share_a_plane(anywhere: Place):
    plane = anywhere.open()
    first = put(plane, "first")
    won: list[int] = []

    def race(number: int) -> None:
        mine = put(plane, f"of {number}", first)
        if plane.swap([Change(ref("claim"), None, mine)]):
            won.append(number)
        assert isinstance(plane.read([mine])[mine], Object)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


@pytest.mark.parametrize("kind", ["bare", "file", "http"])
def test_sha256_repositories(kind: str, tmp_path: Path):
    with place(kind, tmp_path, "sha256") as here:
        plane = here.open()
        assert plane.digest_bytes == 32
        first = put(plane, "first")
        assert plane.swap([Change(ref("job"), None, first)])
        assert here.git("rev-parse", ref("job")).strip() == first
        assert isinstance(plane.read([first])[first], Object)
        here.git("fsck", "--strict")


# --- objects


def test_objects_are_those_that_git_would_write(here: Place):
    plane = here.open()
    blob = plane.write("blob", b"hello\n")
    assert blob == here.git("hash-object", "--stdin", given="hello\n").strip()
    entries = [
        TreeEntry(FILE, "b", blob),
        TreeEntry(FILE, "b.c", blob),
        TreeEntry(DIRECTORY, "b-", plane.write("tree", b"")),
    ]
    entries += [TreeEntry(FILE, "a", blob)]
    tree = plane.write("tree", tree_data(entries))
    listed = here.git("ls-tree", tree).splitlines()
    assert here.git("mktree", given="\n".join(listed)).strip() == tree
    stored = plane.read([tree])[tree]
    assert isinstance(stored, Object) and read_tree(stored.data, 20) == {entry.name: entry for entry in entries}
    commit = put(plane, "first")
    assert here.git("log", "-1", "--format=%s", commit) == "first\n"
    assert plane.swap([Change(ref("job"), None, commit)])
    assert here.git("fsck", "--strict", "--no-dangling") == ""


def test_a_shared_repository_keeps_its_rights(here: Place):
    here.git("config", "core.sharedRepository", "group")
    plane = here.open()
    oid = plane.write("blob", b"for the group")
    path = here.directory / "objects" / oid[:2]
    assert path.stat().st_mode & 0o2070 == 0o2070
    assert plane.read([oid]) == {oid: Object("blob", b"for the group")}


@pytest.mark.parametrize(
    ("settings", "synced"),
    [
        ({}, False),
        ({"core.fsync": "committed"}, True),
        ({"core.fsync": "all,-loose-object"}, False),
        ({"core.fsyncObjectFiles": "true"}, True),
        ({"core.fsync": "none"}, False),
    ],
)
def test_objects_are_synced_when_the_repository_wants_it(
    here: Place, settings: dict[str, str], synced: bool, monkeypatch: pytest.MonkeyPatch
):
    for name, value in settings.items():
        here.git("config", name, value)
    plane = here.open()
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    plane.write("blob", b"x")
    assert bool(calls) == synced


def test_a_damaged_object_is_told_from_the_others(here: Place):
    plane = here.open()
    good, bad, swapped, gone = (plane.write("blob", text.encode()) for text in ("good", "bad", "swapped", "gone"))

    def path(oid: str) -> Path:
        return here.directory / "objects" / oid[:2] / oid[2:]

    for oid, data in ((bad, b"not zlib at all"), (swapped, path(good).read_bytes())):
        path(oid).unlink()
        path(oid).write_bytes(data)
    path(gone).unlink()
    for _ in range(2):
        found = plane.read([bad, good, swapped, gone])
        assert found[good] == Object("blob", b"good")
        assert isinstance(found[bad], Unreadable) and "damaged" in found[bad].why and not found[bad].is_missing
        assert isinstance(found[swapped], Unreadable) and "damaged" in found[swapped].why
        assert isinstance(found[gone], Unreadable) and found[gone].is_missing


def test_a_replacement_is_not_taken_for_the_object(here: Place):
    plane = here.open()
    one, other = plane.write("blob", b"one"), plane.write("blob", b"other")
    here.git("replace", one, other)
    assert plane.read([one]) == {one: Object("blob", b"one")}


def test_a_reader_that_was_ended_is_started_again(here: Place):
    plane = here.open()
    oid = plane.write("blob", b"x")
    plane.read([oid])
    repository: Repository = plane.repository  # type: ignore[attr-defined]
    repository._reader._process.kill()
    repository._reader._process.wait()
    assert plane.read([oid]) == {oid: Object("blob", b"x")}


# --- what can go wrong


def test_no_repository_there(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for where in (str(tmp_path / "nowhere"), str(tmp_path / "empty"), f"file://{tmp_path}/nowhere"):
        with pytest.raises(Usage, match="no git repository"):
            open_plane(where, tmp_path / "cache")


@pytest.mark.parametrize("where", ["", "--upload-pack=touch /tmp/x", "ext::sh -c true"])
def test_addresses_that_are_none(where: str, tmp_path: Path):
    with pytest.raises(Usage):
        open_plane(where, tmp_path / "cache")


def test_nobody_answers(tmp_path: Path):
    with pytest.raises(Unreachable, match="does not answer"):
        open_plane("http://127.0.0.1:1/jobs.git", tmp_path / "cache")


@pytest.mark.parametrize(("code", "words"), [(401, "asks for credentials"), (403, "do not allow")])
def test_credentials_are_never_asked_for(code: int, words: str, tmp_path: Path):
    with http_server(tmp_path, {}, code) as port, pytest.raises(NotAuthorised, match=words) as caught:
        open_plane(f"http://me:secret@127.0.0.1:{port}/jobs.git", tmp_path / "cache")
    assert "secret" not in str(caught.value)


@pytest.mark.req("GT-06")
@pytest.mark.parametrize(
    "cut",
    [("?service=git-receive-pack", False), ("/jobs.git/git-receive-pack", False), ("/jobs.git/git-receive-pack", True)],
)
def test_a_push_whose_connection_is_cut_off_is_made_once(tmp_path: Path, cut: tuple[str, bool]):
    with place("bare", tmp_path) as here:
        cuts: list[tuple[str, bool]] = []
        with http_server(here.directory.parent, here.outside, cuts=cuts) as port:
            plane = open_plane(f"http://127.0.0.1:{port}/{here.directory.name}", here.cache, here.outside, 60)
            commit = put(plane, "first")
            cuts.append(cut)
            assert plane.swap([Change(ref("job"), None, commit)])
            assert not cuts and plane.refs() == {ref("job"): commit}
            plane.close()


def test_a_list_whose_connection_is_cut_off_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(git, "ASK_REST_S", 0.001)
    with place("bare", tmp_path) as here:
        cuts: list[tuple[str, bool]] = []
        with http_server(here.directory.parent, here.outside, cuts=cuts) as port:
            plane = open_plane(f"http://127.0.0.1:{port}/{here.directory.name}", here.cache, here.outside, 60)
            cuts += [("/info/refs", False)] * (git.ASK_TRIES - 1)
            assert plane.refs() == {} and not cuts
            cuts += [("/info/refs", False)] * git.ASK_TRIES
            with pytest.raises(Unreachable, match="does not answer"):
                plane.refs()
            plane.close()


def test_a_server_that_takes_too_long(tmp_path: Path):
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(Unreachable, match="did not end within"):
            open_plane(f"git://127.0.0.1:{silent.getsockname()[1]}/jobs.git", tmp_path / "cache", patience_s=0.5)


def test_git_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Usage, match="git is not installed"):
        open_plane(str(tmp_path), tmp_path / "cache", {"PATH": str(tmp_path)})


def test_the_tests_own_server_answers_before_it_has_read_everything_and_resets_nothing(tmp_path: Path) -> None:
    """A server that closes a connection with data unread resets it, and a client may lose the answer."""
    body = bytes(4 << 20)
    with http_server(tmp_path, {}) as port:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), 60) as client:
                client.sendall(b"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                client.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
            assert answer.startswith(b"HTTP/1.1 501 ")


@pytest.mark.parametrize("kind", ["file", "http", "daemon", "ssh"])
def test_a_server_that_refuses_our_refs(kind: str, tmp_path: Path):
    with place(kind, tmp_path) as here:
        here.git("config", "receive.hideRefs", "refs/gatos")
        plane = here.open()
        with pytest.raises(NotAuthorised, match="refuses changes below refs/gatos"):
            plane.swap([Change(ref("job"), None, put(plane, "first"))])


@pytest.mark.parametrize("kind", ["file", "ssh"])
def test_a_hook_that_declines(kind: str, tmp_path: Path):
    with place(kind, tmp_path) as here:
        hook = here.directory / "hooks" / "pre-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\necho no jobs here >&2\nexit 1\n")
        hook.chmod(0o755)
        plane = here.open()
        with pytest.raises(NotAuthorised, match="no jobs here"):
            plane.swap([Change(ref("job"), None, put(plane, "first"))])


def test_a_daemon_that_may_only_be_read(tmp_path: Path):
    with place("daemon", tmp_path) as here:
        here.git("config", "daemon.receivepack", "false")
        plane = here.open()
        with pytest.raises(NotAuthorised):
            plane.swap([Change(ref("job"), None, put(plane, "first"))])


@pytest.mark.parametrize("kind", ["bare", "file", "http", "ssh", "daemon"])
def test_a_repository_that_vanishes(kind: str, tmp_path: Path):
    with place(kind, tmp_path) as here:
        plane = here.open()
        first = put(plane, "first")
        assert plane.swap([Change(ref("job"), None, first)])
        here.directory.rename(here.directory.with_name("moved away"))
        for attempt in (plane.refs, lambda: plane.swap([Change(ref("job"), first, put(plane, "second"))])):
            with pytest.raises(HocketError) as caught:
                attempt()
            assert type(caught.value) in (StoreError, Usage, Unreachable, NotAuthorised)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_repository_that_may_not_be_written(here: Place):
    plane = here.open()
    for path in (here.directory / "objects", here.directory):
        path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="may not write"):
            put(plane, "first")
    finally:
        for path in (here.directory, here.directory / "objects"):
            path.chmod(0o700)


@pytest.mark.parametrize(("number", "words"), [(errno.EROFS, "read-only"), (errno.ENOSPC, "no space left")])
def test_a_disk_that_takes_nothing(here: Place, monkeypatch: pytest.MonkeyPatch, number: int, words: str):
    plane = here.open()

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=words):
        plane.write("blob", b"x")


def test_a_lock_that_stays(here: Place):
    plane = here.open()
    first = put(plane, "first")
    lock = here.directory / (ref("job") + ".lock")
    lock.parent.mkdir(parents=True)
    lock.touch()
    with pytest.raises(StoreError, match="stays locked"):
        plane.swap([Change(ref("job"), None, first)])
    lock.unlink()
    assert plane.swap([Change(ref("job"), None, first)])


def test_a_ref_to_nothing_is_refused(anywhere: Place):
    plane = anywhere.open()
    with pytest.raises(HocketError):
        plane.swap([Change(ref("job"), None, "12" * plane.digest_bytes)])
    assert plane.refs() == {}


def test_only_our_own_refs_are_touched(here: Place):
    plane = here.open()
    for changes in ([], [Change("refs/heads/main", None, "12" * 20)], [Change(ref("job"), None, "12" * 20)] * 2):
        with pytest.raises(ValueError):
            plane.swap(changes)


# --- the program


def test_settings_of_the_user_do_not_get_in_the_way(here: Place, tmp_path: Path):
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    hook = hooks / "reference-transaction"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    (Path(here.outside["HOME"]) / ".gitconfig").write_text(
        f"[core]\n\thooksPath = {hooks}\n[push]\n\tgpgSign = true\n[commit]\n\tgpgSign = true\n"
        "[fetch]\n\tprune = true\n[transfer]\n\tfsckObjects = true\n"
    )
    here.outside |= {"GIT_DIR": str(tmp_path), "GIT_OBJECT_DIRECTORY": str(tmp_path), "GIT_NAMESPACE": "elsewhere"}
    for address in (here.address, f"file://{here.address}"):
        here.address = address
        plane = here.open()
        # The other end of a file address is this user, too; a hook for servers would be obeyed there.
        hook.rename(hook.with_name("pre-push")) if address != str(here.directory) else None
        name = ref("job" if address == str(here.directory) else "claim")
        assert plane.swap([Change(name, None, put(plane, "first"))])
        assert name in plane.refs()


def test_the_environment_of_git():
    kept = git_environment({"PATH": "/bin", "GIT_DIR": "x", "GIT_SSH_COMMAND": "ssh -i key", "GIT_CONFIG_KEY_0": "a"})
    assert kept["PATH"] == "/bin" and kept["GIT_SSH_COMMAND"] == "ssh -i key" and kept["GIT_CONFIG_KEY_0"] == "a"
    assert "GIT_DIR" not in kept and kept["GIT_TERMINAL_PROMPT"] == "0" and kept["LC_ALL"] == "C"


def test_passwords_are_not_shown():
    assert without_password("https://me:secret@host/x and ssh://git@host") == "https://host/x and ssh://host"
    assert "secret" not in str(Git("https://me:secret@host/x").explain("https://me:secret@host/x is odd", "push"))


@pytest.mark.parametrize(
    ("where", "address"),
    [
        ("/var/jobs.git", False),
        ("jobs.git", False),
        ("./a:b", False),
        ("host:jobs.git", True),
        ("git@host:jobs.git", True),
        ("https://host/jobs.git", True),
        ("file:///jobs.git", True),
    ],
)
def test_paths_and_addresses(where: str, address: bool):
    assert is_address(where) == address


def test_a_cache_that_grew_too_large_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with place("file", tmp_path) as here:
        plane = here.open()
        first = put(plane, "first")
        assert plane.swap([Change(ref("job"), None, first)])
        junk = next(here.cache.iterdir()) / "repository.git" / "objects" / "pack" / "junk"
        junk.write_bytes(b"x" * 10_000)
        monkeypatch.setattr("hocket.extensions.git.planes.CACHE_BYTES_MAX", 5_000)
        here.open()
        assert junk.exists(), "somebody uses it"
        for used in here.planes:
            used.close()
        plane = here.open()
        assert not junk.exists()
        assert isinstance(plane.read([first])[first], Object)


def test_processes_end_with_the_plane(here: Place):
    plane = here.open()
    assert plane.swap([Change(ref("job"), None, put(plane, "first"))])
    plane.read(plane.refs().values())
    talks = [plane.repository._reader._process, plane._mover._process]  # type: ignore[attr-defined]
    assert all(isinstance(process, subprocess.Popen) and process.poll() is None for process in talks)
    plane.close()
    assert all(process.poll() is not None for process in talks)


@pytest.mark.parametrize("command", ["fetch", "ls-remote", "archive"])
def test_a_command_that_fails_is_named_whatever_its_settings(command: str, tmp_path: Path):
    with place("bare", tmp_path) as here, pytest.raises(HocketError, match=f"usage: git {command}|git {command} on"):
        program = Git(str(here.directory), str(here.directory), here.outside)
        program.ask(command, "--no-such-option", settings={"fetch.negotiationAlgorithm": "noop"})
