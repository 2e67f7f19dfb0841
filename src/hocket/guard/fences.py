"""What counts as a fence, and as the name of a guarded resource."""

from hocket.errors import Usage
from hocket.kernel.ids import EXACT_MAX

FENCE_MAX = EXACT_MAX
RESOURCE_CHARS_MAX = 1_000


def check_fence(fence: object) -> int:
    """The fence, a number from 1 to FENCE_MAX. Raises Usage for anything else."""
    if fence is None:
        raise Usage("no fence was given; pass the fence of the lock or of the job that protects this write")
    if isinstance(fence, str):
        raise Usage(f"the fence is the text {_short(fence)}; convert it first, as in int(os.environ['HOCKET_FENCE'])")
    if isinstance(fence, bool) or not isinstance(fence, int):
        raise Usage(f"the fence is a {type(fence).__name__}, not a whole number: {_short(fence)}")
    if not 1 <= fence <= FENCE_MAX:
        raise Usage(
            f"the fence {_short(fence)} is not between 1 and {FENCE_MAX}; no lock and no job gives such a fence"
        )
    return int(fence)


def check_resource(resource: object) -> str:
    if not isinstance(resource, str) or not resource:
        raise Usage(f"the name of a guarded resource must be a text, not {_short(resource)}")
    if len(resource) > RESOURCE_CHARS_MAX:
        raise Usage(f"the name of a guarded resource has {len(resource)} characters; the limit is {RESOURCE_CHARS_MAX}")
    if "\0" in resource or any("\ud800" <= each <= "\udfff" for each in resource):
        raise Usage(f"a database cannot keep {_short(resource)} as the name of a resource")
    return resource


def _short(value: object) -> str:
    if isinstance(value, int) and abs(value) > FENCE_MAX:
        return f"of {value.bit_length()} bits"
    shown = ascii(value)
    return shown if len(shown) <= 60 else shown[:60] + "…"
