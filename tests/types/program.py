"""A typed program with eight mistakes. Each line that a type checker must refuse ends with a comment that says why; all
the others must pass.
"""

import asyncio
from pathlib import Path

import msgspec

import hocket


class Thumbnail(msgspec.Struct):
    path: Path
    width: int


@hocket.job("types.make", retries=2)
def make(ctx: hocket.Context[hocket.SyncNode], src: Path, width: int = 128) -> Thumbnail:
    later = ctx.node.submit(index, [src.name])
    words: int = later.result(timeout=10)
    return Thumbnail(src, width + words)


@hocket.job
async def index(names: list[str]) -> int:
    return len(names)


@hocket.job(priority=3)
async def album(ctx: hocket.Context[hocket.Node], title: str) -> str:
    handle = await ctx.node.submit(make, src=Path(title))
    return str((await handle.result()).path)


@hocket.job("types.bare")
def bare(ctx: hocket.Context, name: str) -> int:
    before: list[Thumbnail] = ctx.results_of(make)
    wrong: list[int] = ctx.results_of(make)  # wrong: the results have another type
    first: str = ctx.results_of(album)[0]
    ctx.node.submit(index, [name, first])
    return len(name) + len(before) + len(wrong)


@hocket.job
async def bare_async(ctx: hocket.Context, name: str) -> str:
    return name


async def main() -> None:
    async with hocket.open() as node:
        length: int = await (await node.submit(bare, name="a")).result()
        same: str = await (await node.submit(bare_async, "a" * length)).result()
        await node.submit(bare, nam="a")  # wrong: no such member, with a context without a parameter
        other: bytes = await (await node.submit(bare_async, same)).result()  # wrong: the handler returns another type
        print(other)
        first = await node.submit(make, src=Path("a.png"), width=64)
        thumbnail: Thumbnail = await first.result()
        await node.submit(make, Path("b.png"))
        await node.submit(make.using(priority=5, after=first), src=Path("c.png"))
        title: str = await (await first.then(album, title="all")).result()
        numbers: list[int] = await node.gather(await node.submit(index, names=[title]))
        anything = await node.submit("types.elsewhere", whatever=1)
        await anything.then(hocket.kind("types.more"), more=[thumbnail.width, *numbers])

        await node.submit(make, source=Path("a.png"))  # wrong: no such member
        await node.submit(make, src=Path("a.png"), width="64")  # wrong: the member has another type
        await node.submit(index)  # wrong: a member is missing
        number: int = await first.result()  # wrong: the handler returns another type
        make.using(retry=3)  # wrong: no such option
        print(number)


def script() -> None:
    with hocket.open() as node:
        handle = node.submit(make, src=Path("a.png"))
        width: int = handle.result().width
        names: list[Thumbnail] = node.gather(handle, handle)
        print(width, names, handle.then(album, title="all").result().upper())
        print(hocket.admin(node).count(kind="types"), hocket.admin(node).jobs().items[0].kind)


if __name__ == "__main__":
    asyncio.run(main())
