"""The parts of a result that a run has made so far. The handler adds them, and never waits for anyone: `part_sender`
sends what is there when it gets to it. At the end they become the whole, an artifact of the run.
"""

import inspect
from collections.abc import Callable
from contextlib import aclosing, closing
from types import GeneratorType
from typing import Any

import msgspec

from hocket.families.jobs.parts import (
    PART_BYTES_MAX,
    PARTS_MAX,
    WHOLE_BYTES_MAX,
    WHOLE_BYTES_TYPE,
    WHOLE_TYPE,
    encode_whole,
)
from hocket.families.json_values import encode_json


class RunParts:
    """The parts of one run, each as JSON. The handler's thread adds; others read, also while it does."""

    def __init__(self, job_id: bytes, fence: int) -> None:
        self.job_id, self.fence = job_id, fence
        self.made: list[bytes] = []
        self.is_bytes = False
        self.is_over = False
        self._size = 0

    def encode(self, value: Any) -> tuple[bytes, bool]:
        """The next part as JSON, and whether it is bytes. Raises ValueError if it is too large, there are too many, or
        it is not like those before.
        """
        is_bytes = isinstance(value, bytes | bytearray | memoryview)
        written = msgspec.json.encode(bytes(value)) if is_bytes else encode_json(value, "the part")
        if self.made and is_bytes is not self.is_bytes:
            raise ValueError("the parts of a job are all bytes, or none of them is")
        if len(written) > PART_BYTES_MAX:
            raise ValueError(f"the part has {len(written)} bytes as JSON, at most {PART_BYTES_MAX}; give smaller ones")
        if len(self.made) >= PARTS_MAX:
            raise ValueError(f"a job has at most {PARTS_MAX} parts; give larger ones")
        if self._size + len(written) > WHOLE_BYTES_MAX:
            raise ValueError(f"the parts of a job have at most {WHOLE_BYTES_MAX} bytes together; make an artifact")
        return written, is_bytes

    def add(self, written: bytes, is_bytes: bool) -> None:
        self.is_bytes = is_bytes
        self._size += len(written) + 1
        self.made.append(written)

    @property
    def whole(self) -> tuple[bytes, str]:
        """All parts as one artifact, and its type."""
        return encode_whole(self.made), WHOLE_BYTES_TYPE if self.is_bytes else WHOLE_TYPE


def gathered(made: Any, part: Callable[[Any], None]) -> Any:
    """What a handler returns. If it is a generator, makes each yielded value a part first."""
    if not isinstance(made, GeneratorType):
        return made
    with closing(made) as generator:
        while True:
            try:
                value = next(generator)
            except StopIteration as end:
                return end.value
            part(value)


async def gathered_async(made: Any, part: Callable[[Any], None]) -> Any:
    """What a coroutine returns. Of an async generator, makes each yielded value a part."""
    if not inspect.isasyncgen(made):
        return await made
    async with aclosing(made) as generator:
        async for value in generator:
            part(value)
    return None
