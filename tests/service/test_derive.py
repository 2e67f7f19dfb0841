"""Passes of a derivation: whatever the size of a pass, every op is read once and in order, and its own ops never."""

from typing import Any

import pytest

import hocket.testing
from hocket.errors import Failed
from hocket.service import Service, derive
from hocket.work import view
from hocket.work.derivation import Derivation, DerivationOp


def kinds(state: list[str], op: DerivationOp) -> tuple[list[str], Any]:
    if op.type != "ScheduleJob":
        return state, None
    return [*state, op.payload["kind"]], op.id


KINDS = Derivation("kinds", kinds, [])


def state(service: Service) -> Any:
    with service.read() as session:
        last = derive._last(session, KINDS)
        return None if last is None else view.result(session, last)["state"]


@pytest.mark.req("LW-47")
@pytest.mark.parametrize("size", [1, 2, 5, 1_000])
def test_every_op_is_read_once_in_passes_of_any_size(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derive, "PASS_OPS_MAX", size)
    monkeypatch.setattr(derive, "PAGE", 2)
    with hocket.testing.node() as node:
        service = Service(node.runtime)
        wanted: list[str] = []
        for more in (3, 1, 4):
            for _ in range(more):
                wanted.append(f"s.k{len(wanted)}")
                node.submit(wanted[-1])
            done = derive.derive(service, KINDS)
            assert done.values == more and done.passes >= max(1, done.ops // size)
            assert state(service) == wanted
        assert derive.derive(service, KINDS).passes == 0
        checked = derive.check(service, KINDS)
        assert checked.passes > 2 and not checked.other_ops and not checked.other_results


@pytest.mark.req("LW-47")
def test_a_pass_that_gives_too_much_is_not_written() -> None:
    large = Derivation("large", lambda state, op: (state, "x" * 100_000), None)
    with hocket.testing.node() as node:
        node.submit("s.k")
        service = Service(node.runtime)
        with pytest.raises(Failed, match="derive less from each op"):
            derive.derive(service, large)
        assert derive.check(service, large).passes == 0
