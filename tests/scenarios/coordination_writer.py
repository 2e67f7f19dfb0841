"""Sends messages and writes rows by turns, numbered from FIRST to LAST. It says each number when both are on the log.

python coordination_writer.py HOME FIRST LAST
"""

import sys

import hocket

home, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with hocket.open(home) as node:
    rows = node.rows("memories")
    for number in range(first, last + 1):
        node.send("sink", str(number), agent="source")
        try:
            rows.put(f"row-{number:04}", number)
        except hocket.Unreachable as error:
            assert "waits here" in str(error), error
        print(number, flush=True)
