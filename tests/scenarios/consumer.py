"""A consumer of messages that checks ids: it processes a message by writing its id to a file, once, and acknowledges it
after that. It is killed at any moment and started again.

    consumer.py AGENT FILE
"""

import os
import sys
from pathlib import Path

import hocket

LEASE = os.environ.get("HOCKET_TEST_LEASE", "2s")


def main(agent: str, path: Path) -> None:
    processed = set(path.read_text().split()) if path.exists() else set()
    with hocket.open() as node, path.open("a") as file:
        inbox = node.inbox(agent)
        while True:
            for message in inbox.claim(20, lease=LEASE, wait="10s"):
                if message.id not in processed:
                    file.write(f"{message.id}\n")
                    file.flush()
                    os.fsync(file.fileno())
                    processed.add(message.id)
                try:
                    message.ack()
                except hocket.Conflict:
                    pass  # the lease ran out; it comes again


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
