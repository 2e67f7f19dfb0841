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
def report(ctx, chapters):
    # A dependency's result is not passed on automatically: the payload names the jobs, and the handler reads them.
    with hocket.open() as node:
        counted = [node.job(job_id).result(timeout=10) for job_id in chapters]
    return {"chapters": [each["title"] for each in counted], "words": sum(each["words"] for each in counted)}


async def main() -> None:
    async with hocket.open() as node:
        chapters = await node.submit_many([(count, {"title": t, "text": text}) for t, text in CHAPTERS.items()])
        last = await node.submit(report.set(after=chapters), chapters=[chapter.job_id for chapter in chapters])

        worker = asyncio.create_task(node.work([count, report], until_idle=True))
        async for event in chapters[0].events():
            print(f"chapter one: {event['type']}")
        print(await last.result(timeout=30))
        await worker


if __name__ == "__main__":
    asyncio.run(main())
