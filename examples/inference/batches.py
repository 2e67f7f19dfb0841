"""Inference in batches: callers ask for one answer each, and the device gets up to eight prompts at once.

A batch is a job, so it survives a crash of the worker, and its seconds on the device are on the log.
"""

import asyncio
import time

import hocket

DEVICE = "NVIDIA A100"


class Model:
    """Stands for a model that takes as long for eight prompts as for one."""

    def answer(self, prompts: list[str]) -> list[str]:
        time.sleep(0.02)
        return [" ".join(reversed(prompt.split())) for prompt in prompts]


MODEL = Model()  # loaded once in each worker


@hocket.job("infer.batch", needs="gpu", retries=2, timeout="5m")
def infer(ctx: hocket.Context, prompts: list[str]) -> list[str]:
    began = time.monotonic()
    answers = MODEL.answer(prompts)
    ctx.used(gpu_sec={DEVICE: time.monotonic() - began})
    return answers


class Batcher:
    """Collects the prompts of many callers into jobs of at most `size`; the first of them waits at most `wait_s`."""

    def __init__(self, node: hocket.Node, size: int = 8, wait_s: float = 0.05) -> None:
        self._node = node
        self._size = size
        self._wait_s = wait_s
        self._waiting: list[tuple[str, asyncio.Future[str]]] = []
        self._sent: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, prompt: str) -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()
        self._waiting.append((prompt, answer))
        if len(self._waiting) == self._size:
            self._send()
        elif len(self._waiting) == 1:
            self._timer = loop.call_later(self._wait_s, self._send)
        return await answer

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        batch, self._waiting = self._waiting, []
        task = asyncio.create_task(self._run(batch))
        self._sent.add(task)
        task.add_done_callback(self._sent.discard)

    async def _run(self, batch: list[tuple[str, asyncio.Future[str]]]) -> None:
        try:
            handle = await self._node.submit(infer, prompts=[prompt for prompt, _ in batch])
            answers = await handle.result()
        except hocket.HocketError as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), text in zip(batch, answers, strict=True):
            if not answer.done():
                answer.set_result(text)
