"""Proofs of commands, found on the log and checked against it; and the output of commands."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from hocket.errors import Usage
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.proof import Proof
from hocket.service import Service
from hocket.work import view
from hocket.work.command.outcome import ending, printed
from hocket.work.command.request import KIND
from hocket.work.proofs import GIT_KIND, examine, need_proof

LOOK_S = 0.05
READ_BYTES = 65_536


class ExaminedProof(NamedTuple):
    """`problems` lists what is wrong with the proof, `notes` what could not be checked."""

    proof: Proof
    problems: list[str]
    notes: list[str]


def of_job(service: Service, job: str) -> Proof:
    """The proof of a job, fetched from another node if this one lacks it."""
    with service.read() as session:
        found = view.find(session, job).job
        return need_proof(session, service.runtime.blobs, found, service.node.fetch)


def examined(service: Service, job: str, offline: bool) -> ExaminedProof:
    """The proof of a job, checked against the log. With `offline`, no file is fetched from other nodes."""
    fetch = None if offline else service.node.fetch
    blobs = service.runtime.blobs
    with service.read() as session:
        found = view.find(session, job).job
        proof = need_proof(session, blobs, found, fetch)
        problems, notes = examine(session, blobs, found, proof, fetch)
    return ExaminedProof(proof, problems, notes)


def command_job(service: Service, job: str) -> str:
    """The id of the one command job whose id starts with this text. Raises Usage for a job of another kind."""
    with service.read() as session:
        found = view.find(session, job).job
    if found.kind not in (KIND, GIT_KIND):
        raise Usage(f"job {job} is of kind {found.kind}, not a command; see `hocket show {job}`")
    return ulid_text(found.id)


def output(service: Service, job_id: str, stream: Literal["stdout", "stderr"], follow: bool) -> Iterator[bytes]:
    """The output of a command: first from the files of the running command, then, from the same position, from the
    log.
    """
    runtime, shown = service.runtime, 0
    while True:
        live = next(runtime.home.runs.glob(f"*/{job_id}-*/streams/{stream}"), None)
        if live is not None:
            for chunk in _tail(live, shown):
                shown += len(chunk)
                yield chunk
        with service.read() as session:
            if ending(session, runtime.blobs, parse_ulid(job_id)) is not None:
                yield printed(session, runtime.blobs, parse_ulid(job_id), stream, service.node.fetch)[shown:]
                return
        if not follow:
            return
        time.sleep(LOOK_S)


def _tail(path: Path, start: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(start)
            while chunk := file.read(READ_BYTES):
                yield chunk
    except FileNotFoundError:
        return
