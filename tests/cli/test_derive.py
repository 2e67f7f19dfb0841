"""`hocket log derive` on the command line: the coordinator derives, and another machine repeats it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import PATIENCE_S, Program

GRAPH = """
import hocket
from hocket.kernel.ids import content_hash
from hocket.kernel.vocabulary import CreateEntity, IngestEvidence


@hocket.job("acme.ingest")
def ingest(ctx, source):
    ctx.emit(IngestEvidence(ctx.new_id(), content_hash(source.encode()), source, "test"))


@hocket.derivation("acme.sources", over=(IngestEvidence,))
def sources(known, op):
    if op.payload.source_type not in known:
        yield CreateEntity(op.derived_id(), "source", op.payload.source_type)
    known[op.payload.source_type] = known.get(op.payload.source_type, 0) + 1
"""


@pytest.fixture
def laptop(hocket: Program, tmp_path: Path) -> Iterator[Program]:
    """A second machine that may read and write everything, but is not the coordinator."""
    process = hocket.start("serve", "--port", "0", "--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=PATIENCE_S)
    laptop = Program(tmp_path / "laptop")
    token = hocket("invite", "laptop", "--may", "all", "--json", code=0).json["token"]
    laptop("join", token, code=0)
    laptop("sync", code=0)
    yield laptop
    laptop.end_started()


@pytest.mark.req("LW-47", "LW-13")
def test_the_coordinator_derives_and_another_machine_gets_the_same(hocket: Program, laptop: Program) -> None:
    (hocket.home.parent / "graph.py").write_text(GRAPH)
    for source in ("mail", "chat", "mail"):
        laptop.submit("acme.ingest", json.dumps({"source": source}))
    laptop("sync", code=0)
    assert "succeeded" in hocket("work", "graph.py", "--until-idle", "--kinds", "acme.ingest", code=0).out
    laptop("sync", code=0)
    assert "only the coordinator derives" in laptop("derive", "graph.py", code=4).sentence
    assert laptop("derive", "graph.py", "--check", "--json", code=0).json == []

    assert hocket("derive", "graph.py", code=0).out == "2 ops derived by 1 job\n"
    [mine] = hocket("derive", "graph.py", "--check", "--json", code=0).json
    assert (mine["read"], mine["derived"], mine["verdict"]) == (3, 2, "same")
    laptop("sync", code=0)
    [theirs] = laptop("derive", "graph.py", "--check", "--json", code=0).json
    assert theirs == mine
    # Nothing new: no further pass.
    hocket("derive", "graph.py", code=0)
    assert len(hocket("jobs", "--kind", "likewise.derive.", "--json", code=0).json) == 1

    (hocket.home.parent / "graph.py").write_text(GRAPH.replace("not in known", "not in ()"))
    assert "1 came out differently here" in laptop("derive", "graph.py", "--check", code=1).sentence


@pytest.mark.req("LW-47")
def test_bad_input_gets_a_sentence(hocket: Program) -> None:
    (hocket.home.parent / "graph.py").write_text(GRAPH)
    (hocket.home.parent / "empty.py").write_text("")
    assert "no derivation 'typo'" in hocket("derive", "graph.py", "--name", "typo", code=2).sentence
    assert "no derivations in empty.py" in hocket("derive", "empty.py", code=2).sentence
    assert "no handler module at none.py" in hocket("derive", "none.py", code=2).sentence
