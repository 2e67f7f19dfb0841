"""Every command of the service, and who may give it; pages of artifacts."""

import ast
import inspect
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hocket.testing
from hocket.api import Principal, Service, artifacts, jobs, nodes, ops, peers, programs, rights, schedules
from hocket.api.job_operations import job_answers, job_submits
from hocket.api.log_operations import author_checkpoints
from hocket.api.peers import NewInvitation
from hocket.errors import NotAuthorised
from hocket.extensions.git import trust
from hocket.families.jobs.cron import NewSchedule
from hocket.kernel.keys import SigningKey
from hocket.kernel.mesh_rules import HOCKET
from hocket.kernel.ucan import NO_QUOTA

DRAFT = hocket.kind("s.kind").draft({})
KEY = "ed25519:" + "5d" * 32
INVITATION = NewInvitation("box", (), ["http://127.0.0.1:1"], 60_000, None, NO_QUOTA)

COMMANDS: dict[Callable[..., Any], tuple[Any, ...]] = {
    job_submits.submit_drafts: ([DRAFT],),
    jobs.cancel: ("0", "because"),
    jobs.retry: ("0", "because"),
    jobs.reschedule: ("0", "because", None, 1_000),
    job_answers.approve: ("0", "fine"),
    job_answers.refuse: ("0", "not today"),
    job_answers.answer: ("0", "the first one"),
    artifacts.put: (Path(__file__), "s.file", None),
    artifacts.evict: ("0",),
    artifacts.clear: (),
    schedules.put: (NewSchedule("nightly", "0 0 * * *", "UTC", DRAFT),),
    schedules.remove: ("nightly",),
    rights.route: ("s.kind", "here"),
    rights.designate: ("here",),
    rights.succeed: (["here"],),
    rights.decide_late: ("here", True),
    rights.revoke: ("here", None),
    rights.reissue: (SigningKey(bytes(32)),),
    peers.add: ("http://127.0.0.1:1",),
    peers.remove: ("http://127.0.0.1:1",),
    peers.resume: ("http://127.0.0.1:1",),
    peers.visit: (None,),
    peers.note_address: ("http://127.0.0.1:1",),
    peers.invite: (INVITATION,),
    peers.cancel_invitation: ("box",),
    ops.rebuild: (lambda done, total: None,),
    ops.set_rules: (HOCKET, lambda done, total: None),
    ops.take_in: (BytesIO(),),
    author_checkpoints.checkpoint: (),
    trust.add: (KEY, "a server"),
    trust.remove: (KEY,),
    programs.create: ("ci", ["mesh:read"]),
    programs.revoke: ("ci",),
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: f"{each.__module__.rsplit('.', 1)[-1]}.{each.__name__}")
def test_no_command_is_taken_from_a_principal_of_another_node(command: Callable[..., Any]) -> None:
    with hocket.testing.node() as node:
        log = node.runtime.log
        with node.runtime.read() as session:
            before = session.head()
        service = Service(node.runtime, Principal(log.node ^ 1, "planner"))
        with pytest.raises(NotAuthorised, match="cannot write as this node"):
            command(service, *COMMANDS[command])
        with node.runtime.read() as session:
            assert session.head() == before and not session.peers() and not session.schedules()


@pytest.mark.parametrize(
    "module",
    [artifacts, trust, job_submits, job_answers, jobs, nodes, ops, peers, schedules, programs, rights],
    ids=lambda each: each.__name__,
)
def test_every_function_that_writes_is_among_the_commands(module: ModuleType) -> None:
    """What writes begins with the check; and whatever runs a transaction writes."""
    known = {each.__name__ for each in COMMANDS if each.__module__ == module.__name__}
    for function in ast.parse(inspect.getsource(module)).body:
        if isinstance(function, ast.FunctionDef) and not function.name.startswith("_"):
            source = ast.unparse(function)
            is_command = any(mark in source for mark in (".log.run(", "store.write(", "check_writer()", "_changing("))
            assert is_command == (function.name in known), function.name


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_pages_of_artifacts_have_each_of_them_once(size: int) -> None:
    def paint(ctx: hocket.Context) -> None:
        for colour in (b"red", b"green", b"blue"):
            ctx.artifact(colour, type="s.canvas")

    job = hocket.JobType("s.paint", function=paint)
    with hocket.testing.node() as node:
        handles = [node.submit(job) for _ in range(2)]
        node.drain([job])
        service = Service(node.runtime)
        for of, expected in ((None, 6), (handles[0].job_id, 3)):
            seen: list[str] = []
            after = None
            while True:
                page = artifacts.page(service, of, size, after)
                seen += [each.artifact_id for each in page.items if each.type == "s.canvas"]
                if (after := page.next) is None:
                    break
            assert len(seen) == len(set(seen)) == expected
