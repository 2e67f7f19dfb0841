"""`hocket why`: traces an output back to its model, prompt, context and evidence."""

from typing import Annotated, Any

from hocket.api.views import moment
from hocket.cli.declarations import Argument, Option, new_app
from hocket.cli.output import emit, say
from hocket.cli.settings import open_service
from hocket.kernel.texts import counted, span

app = new_app()


@app.command()
def why(
    id: Annotated[str, Argument(metavar="JOB|CLAIM|ARTIFACT", help="An id, or a unique beginning of one.")],
    full: Annotated[bool, Option("--full", help="Show whole prompts and outputs.")] = False,
) -> None:
    """Trace an output back to the model calls behind it: model, prompt, output, context and evidence. Missing and
    evicted parts are listed. For a pending job, also the labels that its worker must have.

    \b
      hocket why 01J9ZC
      hocket why 01J9ZC --full --json | jq '.snapshots[0].prompt.text'
    """
    from hocket.api import artifacts

    with open_service() as service:
        told = artifacts.why(service, id, full)
    emit(told)
    for line in _head(told):
        say(line)
    for each in told["snapshots"]:
        say()
        for name, value in _lines(each):
            say(f"  {name.ljust(9)} {value}" if name else f"            {value}", lines=True)
    if told["missing"]:
        say()
        say("missing:", "bold")
        for sentence in told["missing"]:
            say(f"  {sentence}", "yellow")


def _head(told: dict[str, Any]) -> list[str]:
    lines = [f"{told['of']} {told['id']}"]
    if told["of"] == "job":
        job = told["job"]
        lines[0] += f" {job['kind']}, {job['outcome'] or job['state']}"
        lines += [f"  waits: {told['waits_for']}"] if told["waits_for"] else []
        lines += [f"  gave {_sized(each)}" for each in told["artifacts"]]
        lines += [f"  gave claim {each}" for each in told["claims"]]
    elif told["of"] == "artifact":
        artifact = told["artifact"]
        lines[0] += f" {artifact['type']}, {counted(artifact['size'], 'byte')}, {artifact['content']}"
        if artifact["job_id"]:
            lines.append(f"  made by job {artifact['job_id']}")
        lines += [f"  from evidence {_state(each)}" for each in told["inputs"]]
        lines += [f"  cited by {each['type']} {each['id']}" for each in told.get("cited_by", ())]
    else:
        claim = told["claim"]
        lines[0] += f" {claim['predicate']} ({claim['type']}) about {claim['subject']}"
        lines.append(f"  written by {claim['author']} at {claim['created']}")
        lines += [f"  made by job {each}" for each in claim["jobs"]]
        lines += [f"  from evidence {_state(each)}" for each in claim["evidence"]]
        lines += [f"  from claim {_state(each)}" for each in claim["claims"]]
    return lines


def _sized(artifact: dict[str, Any]) -> str:
    size = counted(artifact["size"], "byte")
    return f"artifact {artifact['artifact_id']} {artifact['type']}, {size}, {artifact['content']}"


def _lines(each: dict[str, Any]) -> list[tuple[str, str]]:
    unnamed = " (not named by the completion)" if each.get("named") is False else ""
    made_by = f" for job {each['job_id']}" if each["job_id"] else ""
    lines = [
        ("call", f"{each['artifact_id']}, {counted(each['size'], 'byte')}, {each['content']}{made_by}{unnamed}"),
        (
            "model",
            f"{each['model_id']} {each['model_version']}" + (f" by {each['backend']}" if "backend" in each else ""),
        ),
        ("recorded", f"{moment(each['created_ms'])} by {each['author']}"),
    ]
    if "prompt" in each:
        tokens = [
            f"{each[name]} {what}"
            for name, what in (("prompt_tokens", "tokens in"), ("completion_tokens", "tokens out"))
            if each[name] is not None
        ]
        took = ", ".join([span(each["duration_ms"]), *tokens])
        lines.append(("asked", f"{each['started']} to {each['completed']}, {took}"))
        for name in ("prompt", "output"):
            text = each[name]
            cut = ", shortened; --full shows all" if text["cut"] else ""
            lines.append((name, counted(text["bytes"], "byte") + cut))
            lines += [("", line) for line in text["text"].splitlines()]
    for name, ids in (("evidence", "evidence"), ("claim", "claims"), ("entity", "entities")):
        lines += [(name, _state(one)) for one in each.get(ids, ())]
    return lines


def _state(one: dict[str, Any]) -> str:
    return str(one["id"]) if one["is"] == "here" else f"{one['id']} ({one['is']})"
