"""What fuzzing, and reading with a fuzzer's eye, has found once. Each of these inputs did harm and does none now."""

from time import thread_time

import msgspec
import pytest

from hocket.kernel import vocabulary as v
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import MAX_OP_BYTES, Op, encode
from hocket.kernel.postcard import Malformed
from hocket.kernel.sanitise import sanitised
from hocket.mesh import outgoing, tickets
from hocket.store import OpRow

ID = bytes(16)


def evidence(anchor: str, names: tuple[str, ...]) -> v.IngestEvidence:
    return v.IngestEvidence(ID, bytes(32), "photo", anchor, v.Metadata(None, None, names, (("k", anchor),)))


@pytest.mark.req("LW-29")
@pytest.mark.parametrize("names", [16_000, 65_000])
def test_many_names_in_a_long_text_do_not_keep_a_server_busy(names: int) -> None:
    """Every name was looked for at every place: half a minute for this op of 300 kB, hours for a large one."""
    given = evidence("a" * 80_000, tuple("a" * 6 * (1 + n % 2) + f"{n:06d}" for n in range(names)))
    began = thread_time()
    once = sanitised(given, ["RedactParticipants"])
    assert thread_time() - began < 3
    assert isinstance(once, v.IngestEvidence) and once.metadata_snapshot is not None
    assert once.source_anchor == "" and once.metadata_snapshot.custom == ()
    assert once.metadata_snapshot.participants[:2] == ("participant-1", "participant-2")
    assert sanitised(once, ["RedactParticipants"]) is once


@pytest.mark.req("LW-29")
def test_an_op_that_grows_beyond_its_bound_is_left_out_and_the_page_goes_on() -> None:
    """The placeholder is longer than the name, and the encoder refused in the middle of a page, every time again."""

    class Redacting:
        def reading(self, *asked: object) -> tuple[str, ...]:
            return ("RedactParticipants",)

        def reads_by_kind(self, *asked: object) -> bool:
            return False

    def row(anchor: str) -> OpRow:
        op = Op(ID, Hlc(1, 0, 7), 7, (), evidence(anchor, ("a",)))
        return OpRow(1, ID, pack(op.timestamp), 0, "job", None, 0, 1, encode(op), bytes(32))

    to = outgoing.PeerReader(5, Redacting(), 0, False)  # type: ignore[arg-type]
    assert outgoing._outgoing(None, to, row("a" * (MAX_OP_BYTES // 20)), outgoing.JobKinds()) is None  # type: ignore[arg-type]
    assert outgoing._outgoing(None, to, row("a"), outgoing.JobKinds()) is not None  # type: ignore[arg-type]


@pytest.mark.req("LW-24")
def test_no_name_and_an_empty_name_are_not_the_same_request() -> None:
    """They are signed alike, so that somebody on the way could put one for the other, and the request was refused."""
    ticket = tickets.Ticket(bytes(32), bytes(32), bytes(16), 1, ())
    asked = tickets.make_request(ticket, SigningKey(b"n" * 32), None)
    assert tickets.read_request(asked).name is None
    with pytest.raises(Malformed):
        tickets.read_request(msgspec.json.encode({**msgspec.json.decode(asked), "name": ""}))
