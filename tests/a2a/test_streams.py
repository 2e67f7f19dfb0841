"""What becomes of a task as it comes: states, progress, parts of the result, and the end."""

import threading
from typing import Any

import pytest

from tests.a2a.clients import KIND, OTHER_KIND, A2aClient, message, state, worker
from tests.server.served import PATIENCE_S, Answer, Served
from tests.server.served import hocket as command
from tests.waiting import wait_for

pytestmark = pytest.mark.touches("LW-41")


def _next(events: Any, member: str) -> Any:
    """The next event of this form."""
    return next(each[member] for each in events if member in each)


def test_a_stream_begins_with_the_task_and_ends_with_its_result(served: Served, ann: A2aClient):
    work = worker(served, "w-stream")
    with ann.stream("SendStreamingMessage", {"message": message("stream-1")}) as events:
        task = next(events)["task"]
        assert state(task) == "SUBMITTED"
        (held,) = work.claim()
        assert held["job_id"] == task["id"]
        while state(_next(events, "statusUpdate")) != "WORKING":
            pass
        work.end(held, result={"verdict": "good"})
        rest = list(events)
    *_, artifact, end = rest
    assert artifact["artifactUpdate"]["artifact"]["parts"][0]["data"] == {"verdict": "good"}
    assert artifact["artifactUpdate"]["lastChunk"] is True
    assert state(end["statusUpdate"]) == "COMPLETED" and end["statusUpdate"]["contextId"] == task["contextId"]


def test_the_parts_of_a_result_come_as_pieces_of_one_artifact_to_every_stream(served: Served, ann: A2aClient):
    task = ann.send("parts-1")
    work = worker(served, "w-parts")
    (held,) = work.claim()
    place = {"id": task["id"]}
    with ann.stream("SubscribeToTask", place) as one, ann.stream("SubscribeToTask", place) as two:
        assert state(next(one)["task"]) == state(next(two)["task"]) == "WORKING"
        assert work.end(held, "parts", parts=[{"index": 0, "data": "a "}]).status == 200
        first = [_next(each, "artifactUpdate") for each in (one, two)]
        assert work.end(held, "parts", parts=[{"index": 1, "data": "b"}]).status == 200
        assert work.end(held).status == 200
        rest = [[*each] for each in (one, two)]
    for begun, left in zip(first, rest, strict=True):
        assert "append" not in begun and begun["artifact"]["parts"][0]["text"] == "a "
        (more,) = (each["artifactUpdate"] for each in left if "artifactUpdate" in each)
        assert more["append"] is True and more["artifact"]["parts"][0]["text"] == "b"
        assert more["artifact"]["artifactId"] == begun["artifact"]["artifactId"]
        assert state(left[-1]["statusUpdate"]) == "COMPLETED"
    assert ann.ask("GetTask", place)["artifacts"][0]["parts"][0]["text"] == "a b"


def test_a_client_that_goes_leaves_its_task_alone(served: Served, ann: A2aClient):
    with ann.stream("SendStreamingMessage", {"message": message("gone-1", skill=OTHER_KIND)}) as events:
        task = next(events)["task"]
    with ann.stream("SubscribeToTask", {"id": task["id"]}) as events:
        assert next(events)["task"]["id"] == task["id"]
        ann.ask("CancelTask", {"id": task["id"]})
        *_, end = events
    assert state(end["statusUpdate"]) == "CANCELED"


def test_a_task_that_waits_for_an_approval_says_by_whom_and_goes_on_afterwards(served: Served, ann: A2aClient):
    # A kind's options, or who submits, can want one. This job has the tags of a task, so it is one.
    tags = ann("GET", f"/v1/jobs/{ann.send('tags', skill=OTHER_KIND)['id']}").json["options"]["tags"]
    body = {"kind": KIND, "payload": {}, "tags": tags, "approval_by": "ann"}
    place = {"id": ann("POST", "/v1/jobs", body).json["job_id"]}
    task = ann.ask("GetTask", place)
    assert state(task) == "AUTH_REQUIRED" and "ann" in task["status"]["message"]["parts"][0]["text"]
    with ann.stream("SubscribeToTask", place) as events:
        assert state(next(events)["task"]) == "AUTH_REQUIRED"
        assert ann("POST", f"/v1/jobs/{place['id']}/approve", {}).status == 200
        assert state(_next(events, "statusUpdate")) == "SUBMITTED"
        ann.ask("CancelTask", place)
        assert state([*events][-1]["statusUpdate"]) == "CANCELED"


def test_a_stream_ends_with_its_token(served: Served):
    ending = A2aClient(served, "ending", "all")
    with ending.stream("SendStreamingMessage", {"message": message("ending", skill=OTHER_KIND)}) as events:
        next(events)
        assert command(served.home, "token", "revoke", "ending").returncode == 0
        with pytest.raises(KeyError, match="result"):  # an error instead
            list(events)


def test_a_message_that_waits_ends_with_its_token(served: Served):
    ending = A2aClient(served, "waiting", "all")
    answers: list[Answer] = []
    sent = {"message": message("waiting", skill=OTHER_KIND)}
    waiting = threading.Thread(target=lambda: answers.append(ending.post("SendMessage", sent)))
    waiting.start()
    wait_for(lambda: ending.ask("ListTasks", {})["tasks"], "the task of the message")
    assert command(served.home, "token", "revoke", "waiting").returncode == 0
    waiting.join(PATIENCE_S)
    assert answers[0].json["error"]["code"] == -32603, answers[0].body
