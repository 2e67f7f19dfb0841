"""What no guard takes as a fence or as the name of a resource, with a sentence that says why."""

import sqlite3
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

import hocket

BAD = [
    (None, "no fence was given"),
    (True, "the fence is a bool"),
    (0, "not between 1 and"),
    (-1, "the fence -1 is not between"),
    (2**53, "of 54 bits is not between"),
    (1 << 16609, "of 16610 bits is not between"),
    ("7", r"the fence is the text '7'; convert it first"),
    ("", "the fence is the text ''"),
    ("x" * 5000, "…; convert"),
    (b"7", "the fence is a bytes"),
    (7.0, "the fence is a float"),
    (Decimal(7), "the fence is a Decimal"),
    (object(), "the fence is a object"),
]


def guard_rows(tmp_path: Path, fence: object) -> None:
    connection = sqlite3.connect(tmp_path / "rows.db", isolation_level=None)
    with hocket.fenced(connection, "page", fence):  # type: ignore[arg-type]
        pytest.fail("the block must not be entered")


def guard_file(tmp_path: Path, fence: object) -> None:
    with hocket.fenced_file(tmp_path / "page", fence):  # type: ignore[call-overload]
        pytest.fail("the block must not be entered")


@pytest.mark.req("VX-06")
@pytest.mark.parametrize("guard", [guard_rows, guard_file])
@pytest.mark.parametrize(("fence", "said"), BAD, ids=[said for _, said in BAD])
def test_a_bad_fence_is_refused_and_leaves_nothing(
    guard: Callable[[Path, object], None], fence: object, said: str, tmp_path: Path
) -> None:
    with pytest.raises(hocket.Usage, match=said) as refused:
        guard(tmp_path, fence)
    assert len(str(refused.value)) < 300
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_size] == []


@pytest.mark.parametrize("resource", [None, "", 7, b"page", "x" * 1001, "a\0b", "\ud800"])
def test_a_bad_name_of_a_resource_is_refused(resource: object) -> None:
    with pytest.raises(hocket.Usage, match="resource"):
        hocket.fenced(sqlite3.connect(":memory:"), resource, 1)  # type: ignore[arg-type]


def test_a_stale_fence_says_which_one_has_come(tmp_path: Path) -> None:
    path = tmp_path / "page\x1b[31m"
    with hocket.fenced_file(path, 2**53 - 1):
        pass
    with pytest.raises(hocket.StaleFence, match=r"page\\x1b\[31m' has seen fence 9007199254740991") as refused:
        hocket.fenced_file(path, 7)
    assert (refused.value.fence, refused.value.newest, refused.value.exit_code) == (7, 2**53 - 1, 3)
