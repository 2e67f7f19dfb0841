"""What a worker knows of commands whose manifests are apart from their ops, before it claims them."""

from collections.abc import Callable
from pathlib import Path

from hocket.extensions.command.apart import AGAIN_S, ApartManifests, CommandAnswer
from hocket.families.blobs import HomeBlobs
from hocket.kernel.ids import content_hash
from hocket.kernel.policy import ApartContent

YES, NO = CommandAnswer(True, True), CommandAnswer(True, False)
SALT = bytes(32)


def apart(manifest: bytes) -> ApartContent:
    return ApartContent(content_hash(SALT + manifest).hex(), len(SALT + manifest))


class Away:
    """Another node with these manifests, and the thread that asks it."""

    def __init__(self, blobs: HomeBlobs) -> None:
        self.has: dict[bytes, bytes] = {}
        self.asked: list[bytes] = []
        self.later: list[Callable[[], None]] = []
        self.now = 100.0
        judge = lambda manifest: YES if b"echo" in manifest else NO  # noqa: E731
        self.known = ApartManifests(blobs, self.fetch, judge, self.later.append, lambda: self.now)

    def fetch(self, hash: bytes, size: int) -> bytes | None:
        self.asked.append(hash)
        return self.has.get(hash)

    def run(self) -> None:
        while self.later:
            self.later.pop()()


def test_what_is_here_is_answered_at_once(tmp_path: Path) -> None:
    blobs = HomeBlobs(tmp_path)
    blobs.keep(blobs.stage(SALT + b"echo"))
    away = Away(blobs)
    assert away.known.answer(apart(b"echo")) == YES and not away.later
    # The answer stays when the content is erased, and is no content.
    blobs.close()
    assert away.known.answer(apart(b"echo")) == YES


def test_what_is_elsewhere_is_fetched_beside_and_only_now_and_then(tmp_path: Path) -> None:
    blobs = HomeBlobs(tmp_path)
    away = Away(blobs)
    wanted, other = apart(b"echo"), apart(b"rm")
    assert away.known.answer(wanted) is None and away.known.answer(wanted) is None
    assert len(away.later) == 1
    away.run()
    assert away.known.answer(wanted) is None and len(away.asked) == 1, "the other node could not be asked"
    away.has = {wanted.digest: SALT + b"echo", other.digest: b"another content"}
    away.now += AGAIN_S
    assert away.known.answer(wanted) is None
    away.run()
    assert away.known.answer(wanted) == YES and len(away.asked) == 2
    assert away.known.answer(other) is None
    away.run()
    assert away.known.answer(other) is None, "what came was not what the op names"
    assert not list(blobs.all())
