"""Submits jobs one after the other, numbered from FIRST to LAST. It says each number when the job is on the log.

python writer.py HOME FIRST LAST
"""

import sys

import hocket

home, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
node = hocket.open_sync(home)
for number in range(first, last + 1):
    node.submit("acme.one", n=number)
    print(number, flush=True)
node.close()
