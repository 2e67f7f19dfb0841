"""A client that submits jobs, one and several at once, and sends messages. It writes down what was acknowledged, and
goes on until it is killed. While the database is away, its home keeps what it submits.

    python -m tests.histories.submitter HOME DIRECTORY
"""

import asyncio
import os
import random
import sys
from pathlib import Path

import hocket
from hocket.errors import HocketError
from tests.histories.opening import patiently_opened

KIND = hocket.kind("history.submitted")
AGENT = "reader"


async def run(home: str, directory: str) -> None:
    chance = random.Random()
    made = os.open(Path(directory) / f"calls-{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    async with patiently_opened(home) as node:
        while True:
            try:
                if chance.random() < 0.2:
                    ids = [f"message {await node.send(AGENT, 'text')}"]
                elif chance.random() < 0.3:
                    ids = [f"job {each.job_id}" for each in await node.submit_many([(KIND, {})] * 20)]
                else:
                    ids = [f"job {(await node.submit(KIND)).job_id}"]
                os.write(made, "".join(f"{each}\n" for each in ids).encode())
            except HocketError:
                await asyncio.sleep(0.1)
            await asyncio.sleep(chance.uniform(0, 0.02))


def main() -> None:
    asyncio.run(run(*sys.argv[1:]))


if __name__ == "__main__":
    main()
