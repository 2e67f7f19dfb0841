"""The smallest whole program: one job type, one job, one worker, all in this process and without async.

hocket init
python examples/hello.py World
"""

import sys

import hocket


@hocket.job("example.hello")
def hello(ctx, name):
    return f"Hello, {name}! This is hold number {ctx.fence} on job {ctx.job_id}."


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "you"
    with hocket.open() as node:
        handle = node.submit(hello, name=name)
        # A worker usually runs in a process of its own: `hocket work examples/hello.py`.
        node.work([hello], until_idle=True)
        print(handle.result(timeout=30))


if __name__ == "__main__":
    main()
