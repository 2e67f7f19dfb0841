"""What a handler takes and returns: payloads that do not fit fail at once, results come back as what they were."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hocket
import hocket.testing
from hocket.families.jobs import drafts as job_options
from hocket.families.jobs.drafts import _OPTIONS
from hocket.work.handlers import REGISTRY

MOMENT = datetime(2026, 1, 2, tzinfo=UTC)
got: list[Any] = []


class Size(msgspec.Struct):
    width: int
    height: int = 1


@hocket.job("typed.make", retries=5)
def make(ctx: hocket.Context, src: Path, sizes: list[Size], at: datetime = MOMENT) -> dict[str, tuple[Size, ...]]:
    got[:] = [src, sizes, at]
    return {src.name: tuple(sizes)}


@hocket.job("typed.plain")
def plain(self: int, kind: str = "", *, job: int = 0) -> int:
    return self + job


@hocket.job("typed.open.")
def takes_all(ctx: hocket.Context, one: int, **more: Any) -> dict[str, Any]:
    return {"one": one} | more


@hocket.job
async def bare(number: int) -> int:
    return number + 1


@hocket.job(retries=1)
def bare_with_options(ctx: hocket.Context) -> None: ...


def test_values_arrive_as_their_types_and_so_does_the_result() -> None:
    with hocket.testing.node() as node:
        handle = node.submit(make, Path("x"), sizes=[Size(3), Size(4, 5)])
        assert handle.result() == {"x": (Size(3), Size(4, 5))}
        assert got == [Path("x"), [Size(3), Size(4, 5)], MOMENT]
        assert node.job(handle.job_id).result() == {
            "x": [{"width": 3, "height": 1}, {"width": 4, "height": 5}]
        }  # a handle by id knows no handler


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"sizes": []}, "missing required field `src`"),
        ({"src": "x", "sizes": [], "scr": 1}, "unknown field `scr`"),
        ({"src": "x", "sizes": [{"width": "wide"}]}, r"Expected `int`, got `str` - at `\$.sizes\[0\].width`"),
        ({"src": 7, "sizes": []}, r"Expected `Path`, got `int` - at `\$.src`"),
        ({"src": "x", "sizes": [], "at": "soon"}, r"\$.at"),
    ],
)
def test_a_payload_that_does_not_fit_fails_at_submit_and_before_the_run(payload: dict[str, Any], said: str) -> None:
    with hocket.testing.node() as node:
        for wrong in (lambda: node.submit(make, **payload), lambda: node.submit_many([(make, payload)])):
            with pytest.raises(hocket.Usage, match=said):
                wrong()
        # A submitter without the handler cannot tell. The worker does, and a retry would not help.
        handle = node.submit(hocket.kind("typed.make", retries=5), **payload)
        assert len(node.drain([make])) == 1
        with pytest.raises(hocket.JobFailed, match=said):
            handle.result()

    async def main() -> None:
        async with hocket.testing.node() as node:
            with pytest.raises(hocket.Usage, match=said):
                await node.submit(make, **payload)

    asyncio.run(main())


def test_members_may_have_any_name() -> None:
    with hocket.testing.node() as node:
        assert node.submit(plain, self=1, kind="k", job=2).result() == 3
        assert node.submit("typed.plain", self=1, job=2).result() == 3
        assert node.submit(plain, 4).result() == 4


def test_arguments_by_position_have_their_names() -> None:
    with hocket.testing.node() as node:
        with pytest.raises(hocket.Usage, match="takes 2 members of a payload by position, not 3"):
            node.submit(plain, 1, "k", 3)
        with pytest.raises(hocket.Usage, match=r"'self' of the payload of typed\.plain is given twice"):
            node.submit(plain, 1, self=2)
        with pytest.raises(hocket.Usage, match="by name"):
            node.submit(hocket.kind("typed.plain"), 1)


def test_a_handler_may_take_whatever_comes() -> None:
    with hocket.testing.node() as node:
        handle = node.submit("typed.open.door", one=1, two="2")
        assert handle.result() == {"one": 1, "two": "2"}
        with pytest.raises(hocket.Usage, match="missing required field `one`"):
            node.submit(takes_all, two="2")


def test_a_kind_may_be_the_name_of_the_module_and_the_function() -> None:
    assert bare.kind == f"{__name__}.bare" and bare_with_options.kind == f"{__name__}.bare_with_options"
    assert bare_with_options.retries == 1 and REGISTRY[bare.kind] is bare
    with hocket.testing.node() as node:
        assert node.submit(bare, 1).result() == 2
    with pytest.raises(hocket.Usage, match="has no name"):
        hocket.job(type("Callable", (), {"__call__": lambda self: None})())  # type: ignore[call-overload]


def test_a_program_and_a_worker_that_imports_it_agree_on_a_bare_kind(tmp_path: Path) -> None:
    (tmp_path / "thumbs.py").write_text(
        "import hocket\n@hocket.job\ndef make(src: str) -> str: return src\nprint(make.kind)\n"
    )
    for words in (["thumbs.py"], ["-m", "thumbs"], ["-c", "import thumbs"]):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.stdout == "thumbs.make\n", done.stderr


def test_a_handler_without_names_for_its_payload_is_refused() -> None:
    with pytest.raises(hocket.Usage, match="takes 'width' by position only"):
        hocket.job("typed.hidden")(lambda ctx, width, /: None)


def test_an_annotation_that_cannot_be_checked_is_not() -> None:
    class Ours:
        pass

    def handler(ctx: hocket.Context, left: str | Ours, right: "Nowhere") -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
        return [left, right]

    job = hocket.JobType("typed.loose", function=handler)
    with hocket.testing.node() as node:
        handle = node.submit(job, left={"a": 1}, right=[2])
        node.drain([job])
        assert handle.result() == [{"a": 1}, [2]]


def test_a_result_of_another_type_is_told() -> None:
    @hocket.job("typed.liar")
    def liar() -> int:
        return "three"  # type: ignore[return-value]

    with hocket.testing.node() as node:
        handle = node.submit(liar)
        with pytest.raises(hocket.HocketError, match=r"is not what .*liar returns: Expected `int`, got `str`"):
            handle.result()


def test_the_typed_options_are_the_options() -> None:
    assert job_options.JobOptions.__annotations__.keys() == _OPTIONS.keys()


# A node that is closed.


def test_a_closed_node_says_so(tmp_path: Path) -> None:
    hocket.init(tmp_path / "home")
    closed = "this node is closed"
    node = hocket.open_sync(tmp_path / "home")
    handle = node.submit(plain, 1)
    node.close()
    node.close()
    for ask in (
        lambda: node.submit(plain, 1),
        lambda: node.submit_many([(plain, {"self": 1})]),
        lambda: node.chain((plain, {"self": 1})),
        lambda: node.gather(handle),
        lambda: node.work([plain], until_idle=True),
        lambda: hocket.admin(node).jobs(),
        handle.result,
        handle.status,
        handle.cancel,
        handle.retry,
        lambda: handle.then(plain, 2),
        lambda: next(handle.events()),
    ):
        with pytest.raises(hocket.Usage, match=closed):
            ask()

    async def main() -> None:
        node = await hocket.open(tmp_path / "home")
        handle = await node.submit(plain, 1)
        await node.close()
        await node.close()
        for ask in (
            lambda: node.submit(plain, 1),
            lambda: node.submit(plain.using(priority=1), 1),
            lambda: node.submit_many([(plain, {"self": 1})]),
            lambda: node.chain((plain, {"self": 1})),
            lambda: node.gather(handle),
            lambda: node.work([plain], until_idle=True),
            lambda: hocket.admin(node).jobs(),
            handle.result,
            handle.status,
            handle.cancel,
            handle.retry,
            lambda: handle.then(plain, 2),
            lambda: anext(handle.events()),
        ):
            with pytest.raises(hocket.Usage, match=closed):
                await ask()

    asyncio.run(main())
