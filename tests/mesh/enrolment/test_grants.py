"""Grants as people write them, and in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import Usage
from hocket.kernel.capabilities import grant_of
from hocket.kernel.ucan import ROOT, Capability
from hocket.mesh.grants import parse_action, parse_grants, words

pytestmark = pytest.mark.touches("LW-24")


def pairs(*texts: str) -> dict[tuple[str, str], dict[str, object]]:
    return {(each.resource, each.action): each.caveats for each in parse_grants(texts)}


def test_a_worker_gets_what_it_needs() -> None:
    assert pairs("job:claim:acme.render.", "job:complete:acme.render.") == {
        ("Job", "Claim"): {"kind_prefix": ["acme.render."]},
        ("Job", "Complete"): {"kind_prefix": ["acme.render."]},
        ("Artifact", "Write"): {},
        ("Job", "Read"): {},
        ("Artifact", "Read"): {},
        ("Registration", "Read"): {},
        ("Mesh", "Read"): {},
    }


def test_a_worker_by_its_kinds_reads_these_alone() -> None:
    made = parse_grants([], worker=["acme.render.", "acme.ask"])
    kinds = {"kind_prefix": ["acme.render.", "acme.ask"]}
    assert {(each.resource, each.action): each.caveats for each in made} == {
        ("Job", "Claim"): kinds,
        ("Job", "Complete"): kinds,
        ("Job", "Read"): kinds,
        ("Job", "Define"): kinds,
        ("Artifact", "Read"): kinds,
        ("Artifact", "Write"): {},
        ("Registration", "Read"): {},
        ("Mesh", "Read"): {},
    }
    assert "artifacts of jobs of kind acme.render.* or acme.ask*, delegations and routes" in words(made)[-1]
    # What is granted besides is added, and does not bring the default reads back.
    more = {(each.resource, each.action): each.caveats for each in parse_grants(["job:schedule"], worker=["acme."])}
    assert more["Job", "Read"] == {"kind_prefix": ["acme."]} and more["Job", "Schedule"] == {}
    both = {(each.resource, each.action): each.caveats for each in parse_grants(["artifact:read"], worker=["acme."])}
    assert both["Artifact", "Read"] == {} and both["Job", "Read"] == {"kind_prefix": ["acme."]}


def test_a_grant_to_charge_accounts_by_a_prefix() -> None:
    made = parse_grants(["job:schedule", "account:charge:team-a/"])
    assert Capability("Account", "Charge", {"key_prefix": ["team-a/"]}) in made
    assert not any((each.resource, each.action) == ("Account", "Read") for each in made)
    assert "charge accounts with name team-a/*" in words(made)
    grants = [grant for each in made if (grant := grant_of(each)) is not None]
    assert any(grant.admits("Account", "Charge", ("team-a/nightly",)) for grant in grants)
    assert not any(grant.admits("Account", "Charge", ("team-b",)) for grant in grants)
    for wide in (["ops:write"], ["job:all"], ["ops:read"]):
        others = [grant for each in parse_grants(wide) if (grant := grant_of(each)) is not None]
        assert not any(grant.covers("Account", "Charge") for grant in others)
    with pytest.raises(Usage, match="account has no action 'read'"):
        parse_grants(["account:read"])


def test_passing_on_is_never_granted_unasked() -> None:
    def passes_on(*texts: str, worker: tuple[str, ...] = ()) -> bool:
        grants = [grant_of(each) for each in parse_grants(texts, worker=worker)]
        return any(grant is not None and grant.covers("Registration", "Write") for grant in grants)

    for texts in (["job:all"], ["artifact:all", "mesh:all"], ["ops:read"], ["registration:read"]):
        assert not passes_on(*texts)
    assert not passes_on(worker=("acme.",))
    assert passes_on("registration:write") and passes_on("registration:all") and passes_on("all")
    assert "invite others, and revoke them" in words(parse_grants(["registration:write"]))


def test_all_that_can_be_done_with_jobs_includes_what_they_made() -> None:
    assert pairs("job:all").keys() == {
        *(("Job", "*"), ("Artifact", "Write"), ("Artifact", "Read"), ("Job", "Read")),
        *(("Registration", "Read"), ("Mesh", "Read")),
    }
    assert ("Artifact", "Read") not in pairs("job:all:acme.")


def test_named_reads_replace_what_goes_without_saying_but_for_what_every_node_needs() -> None:
    assert pairs("job:read:acme.") == {
        ("Job", "Read"): {"kind_prefix": ["acme."]},
        ("Registration", "Read"): {},
        ("Mesh", "Read"): {},
    }


@pytest.mark.parametrize("text", ["all", "ALL", "ops:all"])
def test_all_is_everything_and_needs_nothing_beside_it(text: str) -> None:
    assert parse_grants([text]) == ROOT


def test_several_kinds_are_one_grant_and_the_widest_counts() -> None:
    assert pairs("job:claim:a.", "JOB:Claim:b.", "job:claim:a.")["Job", "Claim"] == {"kind_prefix": ["a.", "b."]}
    assert pairs("job:claim:a.", "job:claim")["Job", "Claim"] == {}
    assert pairs("job:claim", "job:claim:a.")["Job", "Claim"] == {}
    assert pairs("job:claim:odd:kind")["Job", "Claim"] == {"kind_prefix": ["odd:kind"]}


@pytest.mark.req("LW-25")
def test_audit_and_sanitize_go_where_they_have_a_meaning() -> None:
    made = parse_grants(
        ["job:claim", "job:complete", "claim:write", "evidence:read", "job:schedule"],
        audit=True,
        sanitize=["StripGeo", "TruncateContent(100)"],
    )
    audited = {(each.resource, each.action) for each in made if each.caveats.get("audit_inference")}
    assert audited == {("Job", "Claim"), ("Job", "Complete"), ("Claim", "Write"), ("Artifact", "Write")}
    for resource in ("episode", "action"):
        for action in ("write", "all"):
            (first, *_) = parse_grants([f"{resource}:{action}"], audit=True)
            assert first.caveats == {"audit_inference": True}
    rules = {(each.resource, each.action): each.caveats.get("sanitize") for each in made}
    assert rules["Evidence", "Read"] == ["StripGeo", "TruncateContent(100)"]
    assert rules["Registration", "Read"] is None and rules["Job", "Claim"] is None
    (everything,) = parse_grants(["all"], audit=True, sanitize=["StripGeo"])
    assert everything.caveats == {"audit_inference": True, "sanitize": ["StripGeo"]}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("jobs:claim", "unknown resource 'jobs'"),
        ("job", "no action ''"),
        ("job:write", "no action 'write'; it has read, schedule, claim, complete, define, approve, erase, all"),
        ("artifact:claim", "it has read, write, all"),
        ("", "unknown resource ''"),
        (
            "artifact:write:acme.",
            "only artifact:read and actions on jobs, locks, inboxes, rows and accounts take",
        ),
        ("job:claim:acme.*", "without a star: 'acme.'"),
        ("job:claim:", "1 to 255"),
        ("job:claim:a\x1bb", "1 to 255"),
        ("job:claim:" + "x" * 256, "1 to 255"),
    ],
)
def test_a_bad_grant_is_named_with_what_is_legal(text: str, part: str) -> None:
    with pytest.raises(Usage, match="bad grant") as caught:
        parse_grants([text])
    assert part in str(caught.value)


def test_bad_rules_and_no_grants() -> None:
    with pytest.raises(Usage, match=r"'Strip' is not a sanitisation rule.*StripGeo"):
        parse_grants(["all"], sanitize=["Strip"])
    with pytest.raises(Usage, match="no grants"):
        parse_grants([])


@given(st.lists(st.text(max_size=30), max_size=3))
def test_any_text_gives_capabilities_that_mean_something_or_a_sentence(texts: list[str]) -> None:
    try:
        made = parse_grants(texts)
    except Usage:
        return
    assert all(grant_of(each) is not None for each in made)


def test_actions() -> None:
    assert parse_action("claim") == ("Job", "Claim")
    assert parse_action("artifact:write") == ("Artifact", "Write")
    assert parse_action("Job:Complete") == ("Job", "Complete")
    with pytest.raises(Usage):
        parse_action("write")


def test_words() -> None:
    assert words(parse_grants(["job:claim:a.", "job:claim:b."], audit=True)) == [
        "claim jobs of kind a.* or b.* (every model call recorded)",
        "read jobs, artifacts, delegations and routes",
    ]
    assert words(ROOT) == ["do everything"]
    assert words(parse_grants(["evidence:read"], sanitize=["StripGeo"])) == [
        "read evidence (after StripGeo)",
        "read delegations and routes",
    ]
    assert words([Capability("Job", "*", {"time_range": [1, 2]})]) == ["do everything with jobs (time_range [1, 2])"]


@pytest.mark.req("VX-10")
def test_grants_on_locks_messages_and_rows_take_prefixes_and_bring_the_reads_that_they_need() -> None:
    granted = parse_grants(["lock:acquire:file:src/", "inbox:write:team/", "row:write:memories/", "lock:break"])
    found = {(each.resource, each.action): each.caveats for each in granted}
    assert found["Lock", "Acquire"] == {"key_prefix": ["file:src/"]}
    assert found["Lock", "Read"] == {}, "all locks of a scope are folded together"
    assert found["Lock", "Break"] == {}
    assert found["Inbox", "Write"] == found["Inbox", "Read"] == {"key_prefix": ["team/"]}
    assert found["Row", "Write"] == found["Row", "Read"] == {"key_prefix": ["memories/"]}
    assert ("Job", "Read") in found, "these reads are not named, so the default ones stay"
    assert "acquire locks with key file:src/*" in words(granted)


def test_a_grant_about_locks_may_name_its_scope() -> None:
    granted = parse_grants(["lock@repo:acquire:src/", "lock@a:b:break", "lock@:all"], of_node=False)
    assert words(granted) == [
        "acquire locks with key src/* in the scope repo",
        "break locks in the scope a:b",
        "do everything with locks in the default scope",
        "read locks in the scope repo and locks in the scope a:b",
    ]
    assert granted[0].caveats == {"scopes": ["repo"], "key_prefix": ["src/"]}
    for text in ("lock@repo", "lock@repo:write", "job@repo:read", "lock@a\nb:read", f"lock@{'x' * 256}:read"):
        with pytest.raises(Usage, match=r"bad (grant|scope)"):
            parse_grants([text])
