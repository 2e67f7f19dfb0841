"""Fan-in: the pages of a book are counted in parallel, one report comes after all of them, and one letter after the
report. Each handler gets the results of the jobs before its own, and none of them waits for another.

    hocket init
    python examples/fan_in.py
"""

import hocket

PAGES = ["a hocket is a melody in several voices", "each note is sung by one voice", "while the others rest"]


@hocket.job("example.words")
def words(text: str) -> int:
    return len(text.split())


@hocket.job("example.total")
def total(ctx: hocket.Context[hocket.SyncNode], title: str) -> str:
    counted = ctx.results_of(words)  # a type checker knows that these are numbers
    if sum(counted) > 15:
        # A handler may submit more work: to the node that runs it.
        ctx.node.submit(words, text=title)
    return f"{title} has {sum(counted)} words on {len(counted)} pages"


@hocket.job("example.letter")
def letter(ctx: hocket.Context, to: str) -> str:
    (report,) = ctx.results_of(total)
    return f"Dear {to}: {report}."


def submit(node: hocket.SyncNode) -> hocket.SyncHandle[str]:
    """Submits everything at once; returns the handle on the last job."""
    pages = node.submit_many([(words, {"text": text}) for text in PAGES])
    return node.submit(total.using(after=pages), title="The book").then(letter, to="Ada")


def main() -> None:
    with hocket.open() as node, node.working([words, total, letter]):
        print(submit(node).result(timeout=30))


if __name__ == "__main__":
    main()
