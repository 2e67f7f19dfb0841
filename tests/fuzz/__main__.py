"""`python -m tests.fuzz`: many inputs for every target, and a line with the figures of each. Under atheris where it is
installed, otherwise with our own mutator. It ends with 1 at the first finding, after printing the input that shows it.
"""

import argparse
import sys
from contextlib import nullcontext

try:
    import atheris
except ImportError:
    atheris = None

# What is to be watched has to be imported under its eyes.
with atheris.instrument_imports(include=["hocket"]) if atheris else nullcontext():
    from tests.fuzz.guided import run_guided
    from tests.fuzz.target import run
    from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzzes whatever reads foreign bytes.")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs for each target")
    parser.add_argument("--target", choices=list(TARGETS), help="only this one")
    asked = parser.parse_args()
    print("guided by atheris" if atheris else "atheris is not installed: our own mutator", flush=True)
    for name in [asked.target] if asked.target else TARGETS:
        target = TARGETS[name]
        try:
            tally = run_guided(atheris, target, asked.runs) if atheris else run(target, asked.runs)
        except AssertionError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{name:<14}{tally}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
