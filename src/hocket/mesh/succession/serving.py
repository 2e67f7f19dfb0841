"""The paths on which a named node answers the coordinator and successors."""

from collections.abc import Callable
from contextlib import closing, suppress

from hocket.bus.hints import about
from hocket.errors import Unconfirmed
from hocket.families.access import NodeAccess
from hocket.kernel.keys import SigningKey
from hocket.kernel.postcard import Malformed
from hocket.log import Log
from hocket.log.succession.leading import CONFIRMED, LOOK_AGAIN_S
from hocket.mesh import wire
from hocket.mesh.gate_requests import Caller, RequestCounts, RequestRefused
from hocket.mesh.succession import words
from hocket.mesh.succession.witness import NamedWitness, known_chain
from hocket.mesh.succession.words import VoteAsk, WitnessAnswer, WitnessAsk, WitnessedAsk, entries_of, read, write
from hocket.mesh.wire import Reply, look

# How long the answer to a request waits for confirmations.
SOON_S = 1.0


class NamedPaths:
    """`admit` takes in ops of other nodes, as those of any push."""

    def __init__(
        self,
        log: Log,
        key: SigningKey,
        monotonic: Callable[[], float],
        admit: Callable[[Caller, bytes], RequestCounts],
    ) -> None:
        self._log, self._admit = log, admit
        self._witness = NamedWitness(log, key, monotonic)

    def answer(self, path: str, caller: Caller, body: bytes) -> Reply:
        try:
            if path == words.WITNESS:
                return _reply(write(self._confirm(caller, read(body, WitnessAsk))))
            if path == words.VOTE:
                return _reply(write(self._witness.vote(read(body, VoteAsk).candidacy(caller.node))))
            self._check_named(caller)
            return _reply(write(self._witness.kept(read(body, WitnessedAsk))))
        except Malformed as error:
            raise RequestRefused(400, "an unreadable word about the succession", caller.node, str(error)) from None

    def _confirm(self, caller: Caller, ask: WitnessAsk) -> WitnessAnswer:
        if ask.others:
            self._admit(caller, ask.others)
            with self._log.store.read() as session:
                ids = [op.id for _, op in entries_of(ask.others)]
                missing = {*ids} - session.known_ops(ids).keys() - {*session.held_among(ids)}
            if missing:
                return WitnessAnswer(f"it does not take {len(missing)} ops of other nodes that come before")
        return self._witness.confirm(caller.node, ask)

    def _check_named(self, caller: Caller) -> None:
        with self._log.store.read() as session:
            chain = known_chain(self._log, session)
        if not any(caller.node in each.nodes for each in chain.in_question):
            raise RequestRefused(403, "entries for a successor, which it may not be", caller.node)


def _reply(body: bytes) -> Reply:
    return Reply(200, {"content-type": wire.OCTETS}, body)


def is_led(log: Log) -> bool:
    """Whether this node is a coordinator with successors, as far as this process knows."""
    permissions = log.permissions_reader.latest
    return permissions is not None and log.is_shared_out(permissions)


async def confirmed_soon(access: NodeAccess) -> None:
    """Waits until what this node has decided is confirmed, so that the answer to a request can have it; not for
    long.
    """
    lead = access.log.lead
    deadline = lead.monotonic() + SOON_S
    with closing(access.listen(about(CONFIRMED))) as changes:
        at = await access.call(lead.last_own)
        if at is None or not await look(access, lead.may_decide):
            return
        with suppress(Unconfirmed):
            while (left := deadline - lead.monotonic()) > 0 and not await access.call(lambda: lead.is_confirmed(at)):
                await changes.wait(min(left, LOOK_AGAIN_S))
