"""Handlers for worker processes that ask a model and make things of the answer."""

import os
from typing import Any

import hocket
from hocket.inference import OpenAI

CLIENT = OpenAI(os.environ["HOCKET_TEST_MODEL"], timeout=30.0)
MESSAGES = [{"role": "user", "content": "The capital of France?"}]


def text(said: dict[str, Any]) -> str:
    return str(said["choices"][0]["message"]["content"])


@hocket.job("ask.plain", lease="20s", retries=2)
def plain(ctx: hocket.Context, size: int = 0) -> str:
    said = text(CLIENT.chat(ctx, model="small", messages=MESSAGES))
    if size:
        ctx.artifact(b"x" * size, type="ask.bytes", ttl="1h")
    return said


@hocket.job("ask.async", lease="20s", retries=2)
async def asynchronous(ctx: hocket.Context) -> str:
    return text(await CLIENT.chat_async(ctx, model="small", messages=MESSAGES))
