"""A process that opens a store by its address, for tests to race and kill.

python child.py add ADDRESS COUNT     COUNT transactions, each of which adds one
python child.py create ADDRESS        waits for a line, then creates the store and adds one
python child.py commit ADDRESS N      commits a note, says so, and waits to be killed
python child.py half ADDRESS N        writes a note, says so before it commits, and waits to be killed
"""

import sys

from hocket import store as stores
from hocket.store import Store


def open_store(address: str) -> Store:
    return stores.open(address, create=True)


def say(word: str) -> None:
    print(word, flush=True)


def add(store: Store, count: int) -> None:
    for _ in range(count):
        with store.write() as session:
            session.set_rate("k", session.rate("k") + 1)


def main() -> None:
    verb, address, *rest = sys.argv[1:]
    if verb == "create":
        say("ready")
        sys.stdin.readline()
        add(open_store(address), 1)
    elif verb == "add":
        add(open_store(address), int(rest[0]))
    elif verb == "commit":
        store = open_store(address)
        with store.write() as session:
            session.set_meta(f"n{rest[0]}", b"x" * 1_000)
        say("committed")
        sys.stdin.readline()
    elif verb == "half":
        with open_store(address).write() as session:
            for number in range(200):
                session.set_meta(f"filler{number}", b"y" * 5_000)
            session.set_meta(f"n{rest[0]}", b"x" * 1_000)
            say("half")
            sys.stdin.readline()


main()
