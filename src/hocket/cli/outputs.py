"""What jobs leave. `hocket artifacts` lists, reads, stores, evicts and deletes artifacts. `hocket artifacts why` traces
an output back to its model, prompt, context and evidence. `hocket logs` shows what a command or a handler printed, and
what a handler logged, here or on another node; on a terminal, control characters are escaped: the job may be another
node's.
"""

import sys
from codecs import getincrementaldecoder
from pathlib import Path
from typing import Annotated, Any

from hocket.api import artifacts
from hocket.api.views import moment
from hocket.cli.declarations import App, Argument, Option
from hocket.cli.derived import add_operations
from hocket.cli.options import ArchiveOption, write_file
from hocket.cli.printing import emit, on_terminal, say
from hocket.cli.settings import open_service, settings
from hocket.kernel.texts import clean, counted, span

app = App()

IdArgument = Annotated[str, Argument("ID", "An artifact id, or a unique beginning of one.")]


@app.callback()
def artifacts_group() -> None:
    """Outputs of jobs besides their results, and files that people stored. The log holds small content; the home holds
    larger content under its hash.

    \b
      hocket artifacts list --job 01J9ZC
      hocket artifacts get 01J9ZD -o frame.png
    """


add_operations(app, artifacts.page, artifacts.show)


@app.command()
def get(
    id: IdArgument,
    output: Annotated[Path | None, Option("--output -o", "FILE", "The file to write; default standard output.")] = None,
) -> None:
    """Write the content of an artifact. --json requires -o and reports where the content went.

    \b
      hocket artifacts get 01J9ZD -o frame.png
      hocket artifacts get 01J9ZD | tar x
    """
    from hocket.errors import Usage

    if output is None and (settings.as_json or on_terminal()):
        raise Usage("give -o FILE; a terminal cannot show the content of an artifact")
    with open_service() as service:
        found = artifacts.content(service, id)
    if output is None:
        sys.stdout.buffer.write(found.data)
        return
    write_file(output, found.data)
    emit({"artifact_id": found.artifact_id, "size": len(found.data), "file": str(output)})
    say(f"{counted(len(found.data), 'byte')} written to {output}")


add_operations(app, artifacts.put, artifacts.evict, artifacts.clear)


def logs(
    job: Annotated[str, Argument("JOB", "The job id, or a unique beginning of it.")],
    follow: Annotated[bool, Option("--follow -f", help="Keep printing until the job ends.")] = False,
    stderr: Annotated[bool, Option("--stderr", help="Show a command's stderr instead of its stdout.")] = False,
    raw: Annotated[bool, Option("--raw", help="Keep colours and control characters on a terminal, too.")] = False,
) -> None:
    """Show the output of a command, or what a handler printed and logged. A pipe gets the exact bytes.

    \b
      hocket logs 01J9ZC
      hocket logs 01J9ZC --follow --stderr

    The output of a command that has ended is on the log. All other output is kept where the job runs, for a while: its
    beginning and its end, if it is long. If that is another node, this node asks its peers for it.
    """
    from hocket.api.output import output

    with open_service() as service:
        show = _raw if raw or not on_terminal() else _Safe()
        for chunk in output(service, job, stderr=stderr, follow=follow):
            sys.stdout.buffer.write(show(chunk))
            sys.stdout.buffer.flush()


def _raw(chunk: bytes) -> bytes:
    return chunk


class _Safe:
    """Makes chunks of output safe to show, including characters that span two chunks."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")

    def __call__(self, chunk: bytes) -> bytes:
        # Both \n and \r\n end a line.
        return clean(self._decoder.decode(chunk).replace("\r\n", "\n"), lines=True).encode()


def why(
    id: Annotated[str, Argument("JOB|CLAIM|ARTIFACT", "An id, or a unique beginning of one.")],
    full: Annotated[bool, Option("--full", help="Show whole prompts and outputs.")] = False,
    archive: ArchiveOption = None,
) -> None:
    """Trace an output back to the model calls behind it: model, prompt, output, context and evidence. Missing and
    evicted parts are listed. For a pending job, also the labels that its worker must have.

    \b
      hocket artifacts why 01J9ZC
      hocket artifacts why 01J9ZC --full --json | jq '.snapshots[0].prompt.text'
    """
    from hocket.api import artifacts

    settings.archive = archive
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
