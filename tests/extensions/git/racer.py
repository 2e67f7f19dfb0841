"""A process that races others on a git plane. It opens the plane, lists the jobs, says `ready`, waits until
the test opens the other end of a pipe, goes for every job in the same order, and tells on standard output what it won.
"""

import json
import os
import sys
from pathlib import Path

from hocket.extensions.git import git_jobs, holding
from hocket.extensions.git.plane import commit_at
from hocket.extensions.git.planes import open_plane
from tests.extensions.git.hands import CONTENTS, NOW_MS, proof, worker


def main() -> None:
    what, address, cache, name, start = sys.argv[1:]
    plane = open_plane(address, Path(cache), os.environ)
    me = worker(name, process=name)
    listed = git_jobs.listing(plane)
    plane.read([job.refs.job for job in listed if job.refs.job is not None])
    print("ready", flush=True)
    os.close(os.open(start, os.O_RDONLY))
    won = []
    for job in listed:
        held = job.claim and holding.HeldClaim(job.refs, "", str(job.refs.claim), job.claim)
        if what == "finish" and held is not None and held.claim.worker == me.key.public:
            tree = commit_at(plane, str(job.refs.job)).tree
            held = held._replace(tree=tree)
            if holding.finish(plane, held, me, proof(held, me), CONTENTS, NOW_MS) is not None:
                won.append((job.refs.content_id.hex(), held.claim.fence, "finished"))
        elif (taken := holding.claim(plane, job, me, NOW_MS)) is not None:
            won.append((job.refs.content_id.hex(), taken.claim.fence, "claimed"))
    print(json.dumps(won), flush=True)
    plane.close()


if __name__ == "__main__":
    main()
