"""A chat that streams its answer word by word and needs no model: it makes new sentences from the words of the question
by a Markov chain, the same for the same question.

hocket init
python examples/chat.py "to be or not to be"

Behind OpenAI's API: `hocket work examples/chat.py` and `hocket mesh serve --openai example.chat`.
"""

import random
import sys
from collections.abc import Iterator
from typing import Any

import hocket

WORDS = 12


@hocket.job("example.chat")
def chat(messages: list[dict[str, Any]], max_tokens: int = WORDS, **options: Any) -> Iterator[Any]:
    said = str(messages[-1].get("content") or "silence").split()
    follow: dict[str, list[str]] = {}
    for word, after in zip(said, [*said[1:], said[0]], strict=True):
        follow.setdefault(word, []).append(after)
    chance, word = random.Random(" ".join(said)), said[0]
    for number in range(max_tokens):
        yield word if number == 0 else f" {word}"
        word = chance.choice(follow[word])
    yield {
        "finish_reason": "length",
        "usage": {
            "prompt_tokens": len(said),
            "completion_tokens": max_tokens,
            "total_tokens": len(said) + max_tokens,
        },
    }


def main() -> None:
    question = sys.argv[1] if len(sys.argv) > 1 else "to be or not to be"
    with hocket.open() as node, node.working([chat]):
        for part in node.submit(chat, messages=[{"role": "user", "content": question}]).stream():
            if isinstance(part.value, str):
                print(part.value, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
