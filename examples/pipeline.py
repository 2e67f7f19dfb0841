"""Jobs that come after other jobs, async handlers, and progress. Four chapters are counted in parallel; the report
starts when the last of them has succeeded.

    hocket init
    python examples/pipeline.py
"""

import asyncio

import hocket

CHAPTERS = {
    "one": "a hocket is a melody in several voices",
    "two": "each note is sung by one voice",
    "three": "while the others rest",
    "four": "and nobody sings a note twice",
}


@hocket.job("example.count", retries=2, backoff="100ms")
async def count(ctx, title, text):
    words = text.split()
    for number, _ in enumerate(words, start=1):
        ctx.progress({"words": number, "of": len(words)})
        await asyncio.sleep(0.02)
    return {"title": title, "words": len(words)}


@hocket.job("example.report", priority=10)
def report(ctx):
    counted = ctx.results  # those of the jobs that this one comes after
    return {"chapters": [each["title"] for each in counted], "words": sum(each["words"] for each in counted)}


async def main() -> None:
    async with hocket.open() as node:
        chapters = await node.submit_many([(count, {"title": t, "text": text}) for t, text in CHAPTERS.items()])
        last = await node.submit(report.using(after=chapters))

        worker = asyncio.create_task(node.work([count, report], until_idle=True))
        async for event in chapters[0].events():
            print(f"chapter one: {event['type']}")
        print(await last.result(timeout=30))
        await worker


if __name__ == "__main__":
    asyncio.run(main())
