"""Every target meets damaged input: a little of it always, a million of each in the soak. What the fuzzer is worth is
shown by faults that are planted and must be found.
"""

import subprocess
import sys
import tracemalloc
from base64 import urlsafe_b64decode
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.bus import hints
from hocket.extensions.command import proof
from hocket.kernel import authority, jws, ops, postcard, ucan, yaml_subset
from hocket.kernel.vocabulary import AcceptWork, Sanitised
from hocket.mesh import tickets
from tests.effort import IS_SOAK
from tests.fuzz.codecs import FRESH_OPS, OPS
from tests.fuzz.mutate import NESTED, VARINTS
from tests.fuzz.target import Found, Target, run
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
RUNS = 2_000
# How many places of a sample get each of the claims.
CUTS = 8 if IS_SOAK else 4
# Within so many, a planted fault is found.
PLANTED_RUNS = 15_000
SOAK_RUNS = 1_000_000
REQUIREMENTS = {
    **dict.fromkeys(("op", "snapshot"), ("LW-20",)),
    **dict.fromkeys(("sequence", "archive"), ("LW-20", "LW-34")),
    **dict.fromkeys(("frontier", "query"), ("LW-28",)),
    **dict.fromkeys(("bearer", "bearer-claims"), ("LW-31",)),
    **dict.fromkeys(("ucan", "capabilities", "join-request", "join-answer", "ticket"), ("LW-24",)),
    **dict.fromkeys(("sanitise",), ("LW-29",)),
    **dict.fromkeys(("rules",), ("LW-30",)),
    **dict.fromkeys(("policy", "changes", "datagram", "message", "parts", "claim"), ()),
    **dict.fromkeys(("snapshot-manifest", "snapshot-chunk", "object-list"), ()),
    **dict.fromkeys(("subject-name",), ("GR-05",)),
    **dict.fromkeys(("manifest",), ("GT-02", "GT-03")),
    **dict.fromkeys(("proof", "envelope"), ("GT-10",)),
    **dict.fromkeys(("git-claim", "git-result", "git-tree"), ("GT-09",)),
    **dict.fromkeys(("git-other-proof",), ("GT-15",)),
    **dict.fromkeys(("beat-frame", "status-claim"), ("BB-02",)),
    **dict.fromkeys(("ucxl",), ("BB-13",)),
    **dict.fromkeys(("libsql-answer", "libsql-row"), ("LW-48",)),
    **dict.fromkeys(("score", "tempo-policy", "window-content"), ()),
}
every_target = pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, id=name, marks=[pytest.mark.req(*REQUIREMENTS[name])] if REQUIREMENTS[name] else [])
        for name, target in TARGETS.items()
    ],
)


@every_target
def test_what_is_good_is_accepted(target: Target) -> None:
    accepted = [target(sample.data) for sample in target.samples]
    # Some samples are good only elsewhere: those of another invitation, those for another node, all rights at once.
    assert all(accepted) or (target.name in ("join-request", "join-answer", "capabilities") and any(accepted))


@every_target
def test_damaged_input_is_refused_or_the_only_spelling(target: Target) -> None:
    tally = run(target, RUNS)
    assert tally.inputs == RUNS and 0 < tally.accepted < RUNS / 2


@every_target
@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_damaged_inputs(target: Target) -> None:
    assert run(target, SOAK_RUNS, seed=1).inputs == SOAK_RUNS


@every_target
@given(data=st.data())
def test_what_hypothesis_thinks_of(target: Target, data: st.DataObject) -> None:
    good = data.draw(st.sampled_from(target.samples)).data
    places = st.integers(0, len(good))
    edits = st.lists(st.tuples(places, st.integers(0, 8), st.binary(max_size=12)), min_size=1, max_size=4)
    for at, size, put in data.draw(edits):
        good = good[:at] + put + good[at + size :]
    target(good)
    target(data.draw(st.binary(max_size=200)))
    target(data.draw(st.text(max_size=200)).encode())


def _cost(target: Target, data: bytes) -> int:
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    target(data)
    return tracemalloc.get_traced_memory()[1] - before


@every_target
def test_small_input_does_not_become_large(target: Target) -> None:
    """A count, a length or a depth that is only claimed costs nothing."""
    rng = Random(3)
    claims = (*VARINTS, *NESTED, b"9" * 5_000, b"a" * 5_000)
    given = [
        sample.data[:at] + claim + sample.data[at + skip :]
        for sample in rng.sample(target.samples, min(3, len(target.samples)))
        for at in rng.sample(sample.cuts, min(CUTS, len(sample.cuts)))
        for claim in claims
        for skip in (0, 1)
    ]
    tracemalloc.start()
    try:
        for data in given:
            bound = 128 * 1024 + 64 * len(data)
            # Another thread of the test runner's may need memory in the same moment, but not each time.
            assert any(_cost(target, data) < bound for _ in range(3)), data
    finally:
        tracemalloc.stop()


def test_a_seed_gives_the_same_inputs_again() -> None:
    for target in TARGETS.values():
        first, second, other = (target.stream(Random(seed)) for seed in (7, 7, 8))
        made = [first() for _ in range(200)]
        assert made == [second() for _ in range(200)] != [other() for _ in range(200)]


def test_the_samples_hold_what_was_sanitised_and_what_was_accepted() -> None:
    kinds = {type(ops.decode(sample.data).payload) for sample in OPS}
    assert {Sanitised, AcceptWork} <= kinds and set(FRESH_OPS) <= {sample.data for sample in OPS}


# Planted faults.


def _lax_varint(window: bytes) -> tuple[int, int]:
    value = shift = 0
    for byte in window:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte <= 0x7F:
            return value, shift // 7
    raise postcard.Malformed("a varint does not end")


def _lax_base64(text: bytes) -> bytes:
    try:
        return urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except ValueError as error:
        raise postcard.Malformed(str(error)) from None


@pytest.mark.parametrize(
    ("target", "room", "name", "fault"),
    [
        ("op", postcard, "_varint", _lax_varint),
        ("frontier", postcard, "_varint", _lax_varint),
        ("changes", hints, "_check_ascending", lambda values: None),
        ("op", ops, "verify", lambda public, signature, message: True),
        ("sequence", ops, "_fault", lambda op, size: None),
        ("bearer", jws, "verify", lambda public, signature, message: True),
        ("bearer", jws, "from_base64url", _lax_base64),
        ("ucan", ucan, "verify", lambda public, signature, message: True),
        ("ucan", ucan, "parse_did_key", lambda did: {}[did]),
        ("capabilities", authority.Grant, "within", lambda child, parent: True),
        ("ticket", tickets, "from_base64url", _lax_base64),
        ("join-request", tickets.JoinRequest, "is_vouched_for", lambda request, key: True),
        ("manifest", yaml_subset, "_plain", lambda event: event.value),
        ("proof", proof, "verify", lambda public, signature, message: True),
        ("envelope", proof, "_check_sense", lambda execution: None),
        ("join-answer", tickets.hmac, "compare_digest", lambda a, b: True),
    ],
)
def test_a_planted_fault_is_found(
    target: str, room: object, name: str, fault: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, name, fault)
    with pytest.raises(Found):
        run(TARGETS[target], PLANTED_RUNS)


# The command.


def _command(*arguments: str, path: Path | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(path or "")}
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_the_command_gives_figures() -> None:
    done = _command("--runs", "300", "--target", "frontier")
    assert done.returncode == 0, done.stderr
    assert "300 inputs" in done.stdout and "accepted" in done.stdout and "/s" in done.stdout
    assert _command("--target", "nothing").returncode == 2


STAND_IN = """
import contextlib, os, pathlib, sys

def instrument_imports(include):
    assert include == ["hocket"] and not any(name.startswith("hocket") for name in sys.modules)
    return contextlib.nullcontext()

def Setup(arguments, one_input):
    global samples, call
    samples, call = [path.read_bytes() for path in pathlib.Path(arguments[-1]).iterdir()], one_input
    assert "-runs=300" in arguments

def Fuzz():
    for n in range(300):
        call(samples[n % len(samples)][: n % 7 or None])
    os._exit({ending})
"""


def test_the_command_uses_atheris_where_it_is_installed(tmp_path: Path) -> None:
    """With a stand-in that has atheris's three names: which process does what, not how well it guides."""
    (tmp_path / "atheris.py").write_text(STAND_IN.format(ending=0))
    done = _command("--runs", "300", "--target", "frontier", path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "guided by atheris" in done.stdout and "300 inputs" in done.stdout
    (tmp_path / "atheris.py").write_text(STAND_IN.format(ending=77))
    done = _command("--runs", "300", "--target", "frontier", path=tmp_path)
    assert done.returncode == 1 and "found after 300 inputs" in done.stderr
