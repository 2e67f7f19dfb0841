"""A small knowledge graph as jobs. `graph.ingest` takes a note in as evidence. `likewise.derive.people` asks a model
who is in it, and makes an entity and a claim of the answer. So the way from a note to a claim is on the log.
"""

from typing import Any

import hocket
from hocket.kernel.ids import content_hash, derived_ulid, parse_ulid, ulid_text
from hocket.kernel.vocabulary import (
    ClaimStatus,
    ClaimType,
    CreateClaim,
    CreateEntity,
    IngestEvidence,
    Location,
    Metadata,
    Provenance,
    TextObject,
)
from tests.scenarios.noting import note

PLACE = Location(52.520008, 13.404954)


@hocket.job("graph.ingest")
def ingest(ctx: hocket.Context, text: str) -> dict[str, str]:
    note(ctx, "start")
    data = text.encode()
    evidence = derived_ulid(1_750_000_000_000, b"note", data)
    metadata = Metadata(1_750_000_000_000, PLACE, ("Ada",), ())
    ctx.emit(IngestEvidence(evidence, content_hash(data), "note", f"note:{len(data)}", metadata))
    return {"evidence": ulid_text(evidence), "text": text}


@hocket.job("likewise.derive.people")
def people(ctx: hocket.Context, after: list[str]) -> dict[str, Any]:
    note(ctx, "start")
    with hocket.open() as node:
        found = [node.job(each).result(timeout=0) for each in after]
    evidence = [each["evidence"] for each in found]
    prompt = "\n".join(each["text"] for each in found)
    name = ctx.infer(
        model="first-word", version="1", prompt=prompt, call=lambda text: text.split()[0], context=evidence
    )
    person, claim = ctx.new_id(), ctx.new_id()
    ctx.emit(CreateEntity(person, "Person", name))
    source = Provenance(evidence=tuple(parse_ulid(each) for each in evidence))
    said = TextObject(prompt.partition(" ")[2])
    ctx.emit(CreateClaim(claim, ClaimType.DERIVED, person, "does", said, ClaimStatus.CLAIM, (), source))
    return {"person": name, "claim": ulid_text(claim)}
