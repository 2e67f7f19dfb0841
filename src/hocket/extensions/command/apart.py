"""Manifests of commands that are apart from their ops. A worker must know what a command is before it claims it:
whether it is for this node, and whether the allowance has it. It cannot ask other nodes while it looks for jobs, so a
manifest that is not here is fetched beside, and the job is left until it has come. Only the answers are kept.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from hocket.errors import HocketError
from hocket.families.artifacts import Fetch
from hocket.families.blobs import Blobs
from hocket.families.jobs.apart import unsalted
from hocket.kernel.policy import ApartContent

T = TypeVar("T")
ANSWERS_MAX = 1_024
# A manifest that could not be fetched is asked for again after this time.
AGAIN_S = 10.0


class CommandAnswer(NamedTuple):
    """Whether a command is for this node, and whether its allowance has it."""

    is_for_here: bool
    is_allowed: bool


class ApartManifests:
    """`judge` answers for the bytes of a manifest; `later` runs something on another thread."""

    def __init__(
        self,
        blobs: Blobs,
        fetch: Fetch,
        judge: Callable[[bytes], CommandAnswer],
        later: Callable[[Callable[[], None]], object],
        monotonic: Callable[[], float],
    ) -> None:
        self._blobs, self._fetch, self._judge, self._later, self._monotonic = blobs, fetch, judge, later, monotonic
        self._lock = threading.Lock()
        self._answers: OrderedDict[bytes, CommandAnswer] = OrderedDict()
        # What is being fetched, or could not be, and when it may be asked for again.
        self._again: OrderedDict[bytes, float] = OrderedDict()

    def answer(self, apart: ApartContent) -> CommandAnswer | None:
        """None as long as the manifest is not known here."""
        digest = apart.digest
        with self._lock:
            if (answer := self._answers.get(digest)) is not None:
                return answer
        blob = self._blobs.read(digest)
        if blob is not None:
            return self._answered(apart, blob)
        now = self._monotonic()
        with self._lock:
            if self._again.get(digest, 0.0) > now:
                return None
            _put(self._again, digest, now + AGAIN_S)
        self._later(lambda: self._ask(apart))
        return None

    def _ask(self, apart: ApartContent) -> None:
        with suppress(HocketError):
            self._answered(apart, self._fetch(apart.digest, apart.size))

    def _answered(self, apart: ApartContent, blob: bytes | None) -> CommandAnswer | None:
        try:
            answer = self._judge(unsalted(apart, blob, "a command"))
        except HocketError:
            return None
        with self._lock:
            self._again.pop(apart.digest, None)
            _put(self._answers, apart.digest, answer)
        return answer


def _put(kept: OrderedDict[bytes, T], key: bytes, value: T) -> None:
    kept[key] = value
    if len(kept) > ANSWERS_MAX:
        kept.popitem(last=False)
