"""Tasks are jobs: how they begin, what state they are in, how they end, and who sees them."""

import threading
from typing import Any

import pytest

from tests.a2a.clients import AT_ONCE, KIND, OTHER_KIND, A2aClient, message, state, worker
from tests.server.served import PATIENCE_S, Served
from tests.server.served import hocket as command

pytestmark = pytest.mark.touches("LW-41")


def test_a_task_goes_from_submitted_to_completed(served: Served, ann: A2aClient):
    task = ann.send("life-1", {"data": {"file": "a.py"}}, {"text": "be strict"})
    assert state(task) == "SUBMITTED" and task["contextId"] and task["artifacts"] == []
    work = worker(served, "w-life")
    (held,) = work.claim()
    assert (held["job_id"], held["payload"]) == (task["id"], {"file": "a.py", "text": "be strict"})
    assert state(ann.ask("GetTask", {"id": task["id"]})) == "WORKING"
    work.end(held, result={"verdict": "good"})
    done = ann.ask("GetTask", {"id": task["id"], "historyLength": 0})
    assert state(done) == "COMPLETED" and "history" not in done
    (artifact,) = done["artifacts"]
    assert artifact["parts"] == [{"data": {"verdict": "good"}, "mediaType": "application/json"}]
    assert done["contextId"] == task["contextId"]


def test_a_task_that_fails_says_why_and_one_that_is_tried_again_is_at_work(served: Served, ann: A2aClient):
    task = ann.send("fail-1")
    work = worker(served, "w-fail")
    (held,) = work.claim()
    work.end(held, "fail", error="no disk", retry=True)
    assert state(ann.ask("GetTask", {"id": task["id"]})) == "WORKING"
    ended = ann.send("fail-2")
    (held,) = (each for each in work.claim(2) if each["job_id"] == ended["id"])
    work.end(held, "fail", error="bad paper", retry=False)
    failed = ann.ask("GetTask", {"id": ended["id"]})
    assert state(failed) == "FAILED"
    assert "bad paper" in failed["status"]["message"]["parts"][0]["text"]
    ann.ask("CancelTask", {"id": task["id"]})


def test_a_cancelled_task_is_canceled_and_one_that_the_node_drops_is_rejected(served: Served, ann: A2aClient):
    mine, dropped = ann.send("cancel-1"), ann.send("cancel-2")
    assert state(ann.ask("CancelTask", {"id": mine["id"]})) == "CANCELED"
    assert ann.refusal("CancelTask", {"id": mine["id"]})["code"] == -32002
    assert command(served.home, "cancel", dropped["id"], "--reason", "not today").returncode == 0
    rejected = ann.ask("GetTask", {"id": dropped["id"]})
    assert state(rejected) == "REJECTED" and "not today" in rejected["status"]["message"]["parts"][0]["text"]
    assert ann.refusal("SubscribeToTask", {"id": mine["id"]})["code"] == -32004


def test_a_message_waits_for_its_task_unless_it_says_otherwise(served: Served, ann: A2aClient):
    found: list[Any] = []
    sent = {"message": message("wait-1", skill=OTHER_KIND)}
    waiting = threading.Thread(target=lambda: found.append(ann.ask("SendMessage", sent)))
    waiting.start()
    work = worker(served, "w-wait", OTHER_KIND)
    (held,) = work.claim(wait_ms=30_000)
    assert not found
    work.end(held, result="fine")
    waiting.join(PATIENCE_S)
    assert state(found[0]["task"]) == "COMPLETED"
    assert found[0]["task"]["artifacts"][0]["parts"] == [{"text": "fine", "mediaType": "text/plain"}]


def test_the_same_message_twice_is_one_task(ann: A2aClient, bob: A2aClient):
    first = ann.send("same", contextId="c-same")
    assert ann.send("same", contextId="c-same")["id"] == first["id"]
    assert bob.send("same")["id"] != first["id"]
    ann.ask("CancelTask", {"id": first["id"]})
    assert ann.send("same", contextId="c-same")["id"] == first["id"]
    other = {"message": message("same", {"data": {"file": "b.py"}}, contextId="c-same"), "configuration": AT_ONCE}
    assert ann.refusal("SendMessage", other)["code"] == -32602


def test_a_task_of_another_does_not_exist(served: Served, ann: A2aClient, bob: A2aClient):
    task = ann.send("own-1", contextId="c-own")
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        theirs = bob.refusal(method, {"id": task["id"]})
        none = bob.refusal(method, {"id": task["id"][:-4] + "ZZZZ"})
        assert theirs["code"] == none["code"] == -32001
        assert theirs["message"].replace(task["id"], "") == none["message"].replace(task["id"][:-4] + "ZZZZ", "")
    more = {"message": message("own-2", taskId=task["id"]), "configuration": AT_ONCE}
    assert bob.refusal("SendMessage", more)["code"] == -32001
    assert ann.refusal("SendMessage", more)["code"] == -32004
    assert bob.ask("ListTasks", {"contextId": "c-own"})["tasks"] == []
    assert task["id"] not in {each["id"] for each in bob.ask("ListTasks", {"pageSize": 100})["tasks"]}
    plain = ann("POST", "/v1/jobs", {"kind": KIND}).json["job_id"]
    assert ann.refusal("GetTask", {"id": plain})["code"] == -32001, "a job that was not sent as a message is no task"


@pytest.mark.parametrize("grants", [("job:read",), ("job:schedule:acme.",), ("job:read", "job:schedule:other.")])
def test_a_token_sends_only_what_it_grants(served: Served, grants: tuple[str, ...]):
    weak = A2aClient(served, f"weak-{'-'.join(grants).replace(':', '-')}", *grants)
    sent = {"message": message("weak"), "configuration": AT_ONCE}
    assert weak.refusal("SendMessage", sent)["data"][0]["reason"] == "PERMISSION_DENIED"
    assert weak.ask("ListTasks", {})["tasks"] == []


def test_a_token_that_may_not_read_results_gets_none(served: Served):
    blind = A2aClient(served, "blind", "job:read", "job:schedule")
    task = blind.send("blind", skill=OTHER_KIND)
    work = worker(served, "w-blind", OTHER_KIND)
    with blind.stream("SubscribeToTask", {"id": task["id"]}) as events:
        assert next(events)["task"]["id"] == task["id"]
        (held,) = work.claim()
        work.end(held, result="secret")
        *_, last = events
    assert state(last["statusUpdate"]) == "COMPLETED" and "secret" not in str(last)
    assert blind.ask("GetTask", {"id": task["id"]})["artifacts"] == []


def test_tasks_are_listed_by_cursor_the_last_changed_first(served: Served):
    cleo = A2aClient(served, "cleo", "all")
    ids = [cleo.send(f"list-{n}", contextId="c-list" if n % 2 else "c-rest")["id"] for n in range(7)]
    cleo.ask("CancelTask", {"id": ids[2]})
    seen: list[str] = []
    token = ""
    while True:
        page = cleo.ask("ListTasks", {"pageSize": 3, "pageToken": token})
        assert page["totalSize"] == 7 and page["pageSize"] == 3
        assert all("artifacts" not in each for each in page["tasks"])
        seen += [each["id"] for each in page["tasks"]]
        if not (token := page["nextPageToken"]):
            break
    assert seen[0] == ids[2] and sorted(seen) == sorted(ids)
    in_context = cleo.ask("ListTasks", {"contextId": "c-list", "includeArtifacts": True})["tasks"]
    assert {each["id"] for each in in_context} == {ids[1], ids[3], ids[5]}
    assert all(each["artifacts"] == [] for each in in_context)
    (canceled,) = cleo.ask("ListTasks", {"status": "TASK_STATE_CANCELED"})["tasks"]
    after = cleo.ask("ListTasks", {"statusTimestampAfter": canceled["status"]["timestamp"]})["tasks"]
    assert canceled["id"] in {each["id"] for each in after}
    assert cleo.ask("ListTasks", {"statusTimestampAfter": "2999-01-01T00:00:00Z"})["tasks"] == []


def test_a_task_whose_job_asks_takes_a_message_as_the_answer_once(served: Served, ann: A2aClient, bob: A2aClient):
    task = ann.send("asks-1", skill=OTHER_KIND)
    work = worker(served, "w-asks", OTHER_KIND)
    (held,) = work.claim(lease_ms=600_000)
    assert held["job_id"] == task["id"]

    def asks(question: str, wait_s: int = 0) -> Any:
        return work.end(held, "ask", question=question, within_ms=600_000, wait_ms=wait_s * 1000).json["answer"]

    def answer(id: str, text: str, **more: Any) -> dict[str, Any]:
        return message(id, {"text": text}, taskId=task["id"], **more)

    def refusal(client: A2aClient, sent: dict[str, Any]) -> int:
        code: int = client.refusal("SendMessage", {"message": sent})["code"]
        return code

    assert refusal(ann, answer("early", "x")) == -32004
    with ann.stream("SubscribeToTask", {"id": task["id"]}) as events:
        assert state(next(events)["task"]) == "WORKING"
        assert asks("Which?") is None
        *_, end = events
    assert state(end["statusUpdate"]) == "INPUT_REQUIRED"
    assert end["statusUpdate"]["status"]["message"]["parts"] == [{"text": "Which?"}]
    assert state(ann.ask("SendMessage", {"message": message("asks-1", skill=OTHER_KIND)})["task"]) == "INPUT_REQUIRED"
    assert [each["id"] for each in ann.ask("ListTasks", {"status": "TASK_STATE_INPUT_REQUIRED"})["tasks"]] == [
        task["id"]
    ]
    assert refusal(bob, answer("theirs", "x")) == -32001
    assert refusal(ann, answer("elsewhere", "x", contextId="ctx-other")) == -32602
    sent = {"message": answer("answer-1", "the first", contextId=task["contextId"]), "configuration": AT_ONCE}
    for _ in range(2):
        assert state(ann.ask("SendMessage", sent)["task"]) == "WORKING"
    assert asks("Which?") == "the first"
    assert asks("And then?") is None
    assert state(ann.ask("SendMessage", sent)["task"]) == "INPUT_REQUIRED", "a repeated answer answers nothing else"
    assert refusal(ann, answer("answer-1", "another")) == -32602
    ended: list[dict[str, Any]] = []
    last = {"message": {**answer("answer-2", "x"), "parts": [{"data": {"n": 1}}]}}
    waiting = threading.Thread(target=lambda: ended.append(ann.ask("SendMessage", last)["task"]))
    waiting.start()
    assert asks("And then?", wait_s=45) == '{"n":1}'
    work.end(held, result="done")
    waiting.join(PATIENCE_S)
    assert [state(each) for each in ended] == ["COMPLETED"]
