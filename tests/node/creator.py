"""A process that creates a home or a database when it is told to, for tests to race and kill.

python creator.py home PATH        creates a home; says `created`, or `exists` if another process was faster
python creator.py schema PATH      creates the database, or upgrades it, and adds one to a counter in it
"""

import sys

from hocket import store
from hocket.errors import Conflict
from hocket.node.runtime import Runtime

verb, path = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
if verb == "home":
    try:
        Runtime.init(path).close()
        print("created", flush=True)
    except Conflict:
        print("exists", flush=True)
else:
    opened = store.open(path, create=True)
    with opened.write() as session:
        session.set_rate("k", session.rate("k") + 1)
    opened.close()
    print("added", flush=True)
