"""Proofs of commands, found on the log and checked against it."""

from typing import NamedTuple

from hocket.api import Service
from hocket.extensions.command.proof import Proof
from hocket.extensions.command.proofs import examine, need_proof
from hocket.families.jobs import view


class ExaminedProof(NamedTuple):
    """`problems` lists what is wrong with the proof, `notes` what could not be checked."""

    proof: Proof
    problems: list[str]
    notes: list[str]


def of_job(service: Service, job: str) -> Proof:
    """The proof of a job, fetched from another node if this one lacks it."""
    with service.read() as session:
        found = view.find(session, job).job
        return need_proof(session, service.runtime.blobs, found, service.fetch)


def examined(service: Service, job: str, offline: bool) -> ExaminedProof:
    """The proof of a job, checked against the log. With `offline`, no file is fetched from other nodes."""
    fetch = None if offline else service.fetch
    blobs = service.runtime.blobs
    with service.read() as session:
        found = view.find(session, job).job
        proof = need_proof(session, blobs, found, fetch)
        problems, notes = examine(session, blobs, found, proof, fetch)
    return ExaminedProof(proof, problems, notes)
