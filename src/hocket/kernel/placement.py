"""Where a job may run: a worker has labels, like `gpu=a100`, and a job may need some of them. A need `gpu` is met by
the label `gpu` and by every label that gives it a value; a need `gpu=a100` by that label alone.
"""

from collections.abc import Collection, Iterable
from typing import Annotated

import msgspec

from hocket.kernel.decoding import convert

LABEL_LENGTH_MAX = 128
NEEDS_MAX = 16
LABEL = r"\A[A-Za-z0-9_.-]+(=[A-Za-z0-9_.:/+-]+)?\Z"

Label = Annotated[str, msgspec.Meta(pattern=LABEL, max_length=LABEL_LENGTH_MAX)]


def check_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Raises ValueError with the first bad one."""
    found = tuple(dict.fromkeys(labels))
    for label in found:
        try:
            convert(label, Label)
        except msgspec.ValidationError:
            raise ValueError(
                f"bad label {label!r}; write it like gpu or gpu=a100, at most {LABEL_LENGTH_MAX} characters"
            ) from None
    return found


def lacking(needs: Iterable[str], labels: Collection[str]) -> list[str]:
    """The needs that these labels do not meet."""
    names = {label.partition("=")[0] for label in labels}
    return [need for need in needs if need not in labels and need not in names]
