"""The targets of the bus: envelopes of messages, and names of subjects. An envelope that is accepted was sealed with a
member's key, and a name that is read is the only one of what it says.
"""

import msgspec
from msgspec.structs import replace

from hocket.bus import process_messages
from hocket.bus.envelope import Drop, Envelope, Seen, open_envelope, seal
from hocket.bus.messages import BusMessage, SubjectName, read_subject, subject_name
from hocket.families.jobs.candidates import node_of, worker_id
from hocket.families.jobs.parts import Part, PartsInOrder, PartsMessage, decode_message, encode_message
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.postcard import Malformed
from hocket.work.ranked_claims import SAID_AT_ONCE_MAX, WORKER_ID_CHARS_MAX, ClaimSaid, read_claims_said
from tests.fuzz.mutate import Damage, Sample
from tests.fuzz.target import Target

KEY = SigningKey(bytes(31) + b"f")
NODE, NOW = node_id(KEY.public), 1_756_865_547_183
PLAIN = Envelope("did:key:zMesh", Hlc(NOW, 7, NODE), b"\1" * 8, "hocket.c.claims.acme", b'{"job_id": "x"}', "hocket.r")
KEPT = replace(PLAIN, is_kept=True, reply_to="", data=b"", at=Hlc(NOW - 500_000, 2**32 - 1, NODE))


def _sample(data: bytes) -> Sample:
    return Sample(data, tuple(range(len(data) + 1)))


ENVELOPES = [_sample(seal(each, KEY)) for each in (PLAIN, KEPT)]
SEALED = frozenset(each.data for each in ENVELOPES)


def _open(data: bytes) -> Envelope | Drop:
    return open_envelope(data, PLAIN.cluster, PLAIN.subject, {NODE: KEY.public}.get, NOW, Seen())


def _hold_envelope(data: bytes, opened: Envelope | Drop) -> bool:
    if isinstance(opened, Drop):
        return False
    assert data in SEALED, "accepted, and never sealed"
    assert seal(opened, KEY) == data, "not the one form of what it says"
    return True


NAMES = [
    _sample(subject_name("did:key:zMesh", "gatos/jobs/pending", kind).encode())
    for kind in ("acme.render", "", ".", "é.*.>", "a b%")
]


def _hold_name(data: bytes, name: SubjectName) -> bool:
    assert subject_name(*name).encode() == data, "another name for the same subject"
    return True


DATAGRAMS = [_sample(process_messages._datagram(BusMessage("hocket.c.t", b"data" * 9, "hocket.r")))]


def _hold_datagram(data: bytes, message: BusMessage) -> bool:
    assert process_messages._datagram(message) == data, "not the one form of what it says"
    return True


PARTS = [_sample(encode_message(3, 7, [b'"to "', b'{"n":1}'], False)), _sample(encode_message(1, 0, [b'"/w=="'], True))]


def _hold_parts(data: bytes, message: PartsMessage) -> bool:
    assert all(part.fence == message.fence for part in _in_order(message))
    return True


def _in_order(message: PartsMessage) -> list[Part]:
    order = PartsInOrder()
    order.begin(3)
    return list(order.take(message))


CLAIMS = [
    _sample(msgspec.json.encode([ClaimSaid(f"01J9ZC0000000000000000000{n}", worker_id(NODE, "worker-1-ab"), n)] * n))
    for n in (1, 3)
]


def _hold_claims(data: bytes, read: list[tuple[bytes, ClaimSaid]]) -> bool:
    assert 0 < len(read) <= SAID_AT_ONCE_MAX
    for job_id, said in read:
        assert len(job_id) == 16 and node_of(said.worker_id) == NODE and said.fence >= 0
        assert len(said.worker_id) <= WORKER_ID_CHARS_MAX
    return True


TARGETS = (
    Target("parts", decode_message, (Malformed,), _hold_parts, PARTS, lambda rng: Damage(rng, PARTS)),
    Target(
        "claim",
        lambda data: read_claims_said(data, NODE),
        (ValueError, msgspec.MsgspecError, RecursionError),
        _hold_claims,
        CLAIMS,
        lambda rng: Damage(rng, CLAIMS, (b"[", b"9" * 30, b"/", b"-1", b"\\ud800")),
    ),
    Target("message", _open, (), _hold_envelope, ENVELOPES, lambda rng: Damage(rng, ENVELOPES)),
    Target(
        "subject-name",
        lambda data: read_subject(data.decode()),
        (Malformed, UnicodeDecodeError),
        _hold_name,
        NAMES,
        lambda rng: Damage(rng, NAMES, (b"%2E", b"%", b".", b"%C3%A9", b"%00")),
    ),
    Target(
        "datagram", process_messages._read, (Malformed,), _hold_datagram, DATAGRAMS, lambda rng: Damage(rng, DATAGRAMS)
    ),
)
