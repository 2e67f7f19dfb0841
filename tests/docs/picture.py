"""Draws the tour as it looks in a terminal: `make run | python -m tests.docs.picture FOLDER` writes tour.svg and
tour-mesh.svg, from what it has printed. The first has one machine, the second a mesh whose nodes fail, and two agents.
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 108
# Rich names fonts on a server and its own site; a picture needs nothing from elsewhere.
ELSEWHERE = re.compile(r"\s*@font-face \{.*?\}|\s*<!--.*?-->", re.DOTALL)


def part(lines: list[str], first: str, last: str) -> list[str]:
    """The lines from the one that contains `first` to the first one after it that contains `last`."""
    begin = next(number for number, line in enumerate(lines) if first in line)
    end = next(number for number in range(begin, len(lines)) if last in lines[number])
    return lines[begin : end + 1]


def pictures(output: str) -> dict[str, list[str]]:
    lines = [re.sub(r"([0-9a-f]{8})[0-9a-f]{56}", r"\1…", line) for line in output.splitlines()]
    return {
        "tour.svg": part(lines, "jobs are submitted", "log verified"),
        "tour-mesh.svg": [*part(lines, "gpu is killed", "53 runs"), "", *part(lines, "Now two agents", "log of desk")],
    }


def draw(lines: list[str]) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    for line in lines:
        console.print(Text(line), highlight=True)
    svg = ELSEWHERE.sub("", console.export_svg(title="make run", unique_id="tour"))
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    for name, lines in pictures(sys.stdin.read()).items():
        (Path(sys.argv[1]) / name).write_text(draw(lines), encoding="utf-8")
