import pytest

from hocket.kernel.texts import counted


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "job", "0 jobs"),
        (1, "job", "1 job"),
        (2, "op", "2 ops"),
        (1.0, "second", "1 second"),
        (1.5, "second", "1.5 seconds"),
    ],
)
def test_one_is_singular(count: float, noun: str, text: str) -> None:
    assert counted(count, noun) == text
