"""The list of a bucket, which an object store sends."""

from hocket.kernel.postcard import Malformed
from hocket.log.archives.s3_bucket import ListedPage, listed
from tests.fuzz.codecs import Sample
from tests.fuzz.mutate import Damage
from tests.fuzz.target import Target

_ONE = b"<Contents><Key>p/0123456789abcdef/2026-01-30.ops.zst</Key><ETag>&quot;e&quot;</ETag></Contents>"
_LISTS = [
    b"<ListBucketResult></ListBucketResult>",
    b"<ListBucketResult><IsTruncated>false</IsTruncated>" + _ONE + b"</ListBucketResult>",
    b'<L xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>true</IsTruncated>'
    b"<NextContinuationToken>next</NextContinuationToken>" + _ONE + b"</L>",
]


def _hold(data: bytes, page: ListedPage) -> bool:
    assert all(isinstance(each, str) for pair in page.etags.items() for each in pair)
    assert page.after is None or page.after, "an empty token would begin the list anew for ever"
    return True


_SAMPLES = [Sample(data, tuple(range(len(data) + 1))) for data in _LISTS]

TARGETS = (
    Target(
        *("object-list", lambda data: listed(data, "p/"), (Malformed,), _hold, _SAMPLES),
        lambda rng: Damage(rng, _SAMPLES),
    ),
)
