"""What a process keeps in memory does not grow with the jobs that have passed through it."""

import asyncio
import functools
import gc
import os
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.families.liveness import ProcessLock, ProcessTurn, is_held
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from tests.mesh.world import PATIENCE_S, WORKER, enrolled, world

JOBS = 300
REMOTE_JOBS = 60
GROWN_MAX = JOBS // 10
CACHE = type(functools.lru_cache(len))


@hocket.job("memory.echo")
def echo(ctx: hocket.Context, **payload: Any) -> Any:
    return payload


@pytest.fixture(scope="module", autouse=True)
def collections_of_modules_count() -> Iterator[None]:
    """What was there before the first test is left out of searches for garbage (`tests/conftest.py`), but not here."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def sizes() -> dict[int, tuple[int, Any]]:
    """The size of each collection that has a hundred members or more, by its identity."""
    gc.collect()
    known = gc.get_objects()
    found = [each for each in known if type(each) in (dict, set, list, deque) and len(each) >= 100]
    caches = [each for each in known if type(each) is CACHE and each.cache_parameters()["maxsize"] is not None]
    # A cache of the last signed ops has a dict that grows up to its limit; the collector sees it now and then.
    bounded = {id(each) for each in gc.get_referents(*caches) if type(each) is dict}
    return {id(each): (len(each), each) for each in found if id(each) not in bounded}


def shown(grown: dict[int, int], after: dict[int, tuple[int, Any]]) -> list[str]:
    """What has grown, and who knows it."""
    members = [(after[key][1], size) for key, size in grown.items()]
    return [
        f"{type(each).__name__} of {size}: {str(each)[:200]} in {[str(type(by)) for by in gc.get_referrers(each)]}"
        for each, size in members
    ]


@pytest.mark.touches("LW-18")
def test_no_collection_of_a_worker_grows_with_its_jobs(tmp_path: Path) -> None:
    async def run() -> None:
        node = Node(Runtime.init(tmp_path / "home"))
        async with node.working([echo]):
            taken = []
            for _ in range(3):
                handles = await node.submit_many([("memory.echo", {"n": n}) for n in range(JOBS)])
                await node.gather(*handles, timeout=60)
                del handles
                taken.append(sizes())
            before, after = taken[1:]
            grown = {
                key: size for key, (size, _) in after.items() if key in before and size > before[key][0] + GROWN_MAX
            }
            assert not grown, shown(grown, after)
        await node.close()

    asyncio.run(run())


@pytest.mark.touches("LW-17")
def test_a_lock_that_was_closed_is_forgotten(tmp_path: Path) -> None:
    for number in range(100):
        ProcessLock(tmp_path, f"lock-{number}").close()
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, ProcessLock) and each.path.parent == tmp_path]


@pytest.mark.touches("LW-28")
def test_the_right_to_sync_that_was_given_up_is_forgotten(tmp_path: Path) -> None:
    lock = ProcessTurn.take(tmp_path)
    assert lock is not None
    lock.close()
    kept = weakref.ref(lock)
    del lock
    gc.collect()
    assert kept() is None


@pytest.mark.req("LW-17")
def test_a_forked_child_does_not_keep_a_lock_of_its_parent(tmp_path: Path) -> None:
    lock = ProcessLock(tmp_path, "lock")
    (reading, writing), (told, tells) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.write(tells, b".")
        os.read(reading, 1)  # until the parent has closed its end
        os._exit(0)
    os.read(told, 1)
    os.close(lock.fd)
    lock._fd = -1
    assert is_held(tmp_path, "lock") is False
    for each in (reading, writing, told, tells):
        os.close(each)
    os.waitpid(child, 0)


@pytest.mark.slow
@pytest.mark.touches("LW-28")
def test_no_collection_of_a_server_grows_with_the_jobs_of_other_nodes(tmp_path: Path) -> None:
    """The worker's node asks the coordinator about each job alone, so that there are many exchanges. Used nonces are
    kept for their time, however many jobs there are.
    """

    async def run() -> None:
        async with world(tmp_path, "server") as [server]:
            place = await enrolled(tmp_path / "worker", server, WORKER)
            async with place.node.working([echo], concurrency=1, ahead=0):
                taken = []
                for _ in range(3):
                    for number in range(REMOTE_JOBS):
                        handle = await server.node.submit("memory.echo", n=number)
                        assert await handle.result(PATIENCE_S) == {"n": number}
                    del handle
                    taken.append(sizes())
            await place.close()
            used = server.gate._used_tokens._nonces
            nonces = {id(used._seen), id(used._by_end)}
        before, after = taken[1:]
        grown = {
            key: size
            for key, (size, _) in after.items()
            if key in before and key not in nonces and size > before[key][0] + REMOTE_JOBS // 5
        }
        assert not grown, shown(grown, after)

    asyncio.run(run())
