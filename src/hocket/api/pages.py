"""Lists in pages: how long one may be, and where the next begins."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from hocket.api import ListPage
from hocket.api.operation import InShell

PAGE_MAX = 1_000
PAGE_DEFAULT = 100
# An answer gets no more items once they have this many bytes; so many are read at a time.
ANSWER_BYTES = 4 * 1024 * 1024
STEP = 16

T = TypeVar("T")
FetchPage = Callable[[int, str | None], ListPage[T]]

Limit = Annotated[
    int,
    Meta(ge=1, le=PAGE_MAX, description="The most items of one page."),
    InShell(metavar="N", help="How many at most."),
]
After = Annotated[
    str,
    Meta(min_length=1, max_length=1024, description="`next` of the page before."),
    InShell(metavar="KEY", help="Begin after this key."),
]


def page_of(items: Iterable[T], key: Callable[[T], str], limit: int, after: str | None) -> ListPage[T]:
    """Part of a list that the service gives as a whole, in the order of the key. Items with one key are numbered."""
    places: list[tuple[str, T]] = []
    same: Counter[str] = Counter()
    for each in items:
        place = key(each)
        places.append((f"{place} {same[place]}" if same[place] else place, each))
        same[place] += 1
    left = sorted(((place, each) for place, each in places if after is None or place > after), key=lambda pair: pair[0])
    return ListPage([each for _, each in left[:limit]], left[limit - 1][0] if len(left) > limit else None)


def bounded_page(fetch: FetchPage[T], limit: int, after: str | None, step: int = STEP) -> ListPage[T]:
    """A page that ends early if its items are large, so that no answer takes much memory."""
    items: list[T] = []
    size = 0
    while limit > 0 and size < ANSWER_BYTES:
        page = fetch(min(step, limit), after)
        items += page.items
        size, limit, after = size + json_size(page.items), limit - step, page.next
        if after is None:
            break
    return ListPage(items, after)


def json_size(items: Iterable[object]) -> int:
    return sum(len(msgspec.json.encode(each)) for each in items)
