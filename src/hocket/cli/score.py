"""`hocket score`: checks the scores of tasks. Needs no home."""

from typing import Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.files import read_file
from hocket.cli.output import emit, say
from hocket.errors import Failed

app = new_app()


@app.callback()
def score_group() -> None:
    """Scores: how many beats a task has for each phase and for its waits, how often it is tried, and what happens then.

    \b
      hocket score check score.yaml
    """


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A score in YAML or JSON; - reads stdin.")],
) -> None:
    """Check a score: exit code 0 if it is good, otherwise 1 with the wrong field, its line and what is allowed.

    \b
      hocket score check score.yaml
      git show HEAD:score.yaml | hocket score check -
    """
    from hocket.kernel.beats.file_fields import FILE_BYTES_MAX, BadField
    from hocket.kernel.beats.score import phrase_phases, read_score, score_json

    try:
        score = read_score(read_file(file, FILE_BYTES_MAX))
    except BadField as error:
        emit(
            {
                "good": False,
                "field": error.field or None,
                "line": error.line,
                "problem": error.problem,
                "allowed": error.allowed,
            }
        )
        raise Failed(f"{'standard input' if file == '-' else file}: {error}") from None
    phrases = [phrase_phases(score, phrase) for phrase in range(score.max_phrases)]
    emit({"good": True, "phrases": phrases} | score_json(score))
    for number, phases in enumerate(phrases, start=1):
        beats = ", ".join(f"{name} {length}" for name, length in phases.items())
        say(f"phrase {number}: {beats} of {score.bar_len} beats")
    waits = ", ".join(f"{name} {beats}" for name, beats in score.wait_budget.items())
    say(f"good: waits of at most {waits} beats")
