"""Names of subjects: safe for NATS and for files, and reversible, whatever a kind contains."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hocket.bus.messages import (
    NAME_CHARS_MAX,
    BusMessage,
    check_message,
    check_pattern,
    is_match,
    read_subject,
    subject_name,
    subject_pattern,
)
from hocket.families.jobs.rules import KIND_LENGTH_MAX
from hocket.kernel.postcard import Malformed

CLUSTER = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
TEXTS = st.text(max_size=40).filter(lambda text: not any("\ud800" <= each <= "\udfff" for each in text))
KINDS = st.one_of(TEXTS, st.lists(st.sampled_from(["a", "", "*", ">", "%", "é", "/", " ", "\n"])).map(".".join))


@pytest.mark.req("GR-05")
@given(st.one_of(st.just(CLUSTER), TEXTS), TEXTS, KINDS)
@example("", "", "")
@example(CLUSTER, "gatos/jobs/pending", "acme.render")
@example("a", "b", ".")
@example("a", "b", "..x.")
def test_any_kind_becomes_a_safe_name_and_comes_back(cluster: str, topic: str, kind: str) -> None:
    name = subject_name(cluster, topic, kind)
    assert read_subject(name) == (cluster, topic, kind)
    assert re.fullmatch(r"[A-Za-z0-9_%.-]+", name), "nothing that NATS, a shell or a file's name gives a meaning"
    check_message(BusMessage(name, b""))
    check_pattern(name)


@pytest.mark.req("GR-05")
@given(KINDS, KINDS)
def test_a_pattern_for_a_prefix_matches_the_kinds_below_it_and_no_others(prefix: str, kind: str) -> None:
    pattern = subject_pattern("c", "t", prefix + ".")
    check_pattern(pattern)
    for each in (kind, f"{prefix}.{kind}", f"{prefix}.a.b", prefix, f"{prefix}x"):
        assert is_match(pattern, subject_name("c", "t", each)) == each.startswith(prefix + "."), each
        assert is_match(subject_pattern("c", "t"), subject_name("c", "t", each))
        assert not is_match(subject_pattern("c", "other"), subject_name("c", "t", each))
        assert not is_match(subject_pattern("other", "t"), subject_name("c", "t", each))


def test_a_pattern_for_one_kind_is_its_name() -> None:
    assert subject_pattern("c", "t", "acme.render") == subject_name("c", "t", "acme.render") == "hocket.c.t.acme.render"
    assert subject_pattern("c", "t", "acme.") == "hocket.c.t.acme.>"
    assert subject_pattern("c", "t") == "hocket.c.t.>"


@given(st.one_of(st.text(), st.from_regex(r"hocket\.[a-z%2E0]{0,9}(\.[a-z%2Ee0-9]{0,6}){1,3}", fullmatch=True)))
def test_a_name_has_one_spelling(name: str) -> None:
    try:
        read = read_subject(name)
    except Malformed:
        return
    assert subject_name(*read) == name


@pytest.mark.parametrize(
    "name",
    ["", "hocket", "hocket.c.t", "other.c.t.k", "hocket.c..k", "hocket.c.t.%2e", "hocket.c.t.%2E", "hocket.c.t.%61"]
    + ["hocket.c.t.%FF", "hocket.c.t.*", "hocket.c.t.>", "hocket.c.t.a b", "hocket.c.t.%%", "hocket.c.t.é"],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(Malformed):
        read_subject(name)


def test_every_kind_fits_and_longer_texts_are_refused() -> None:
    kind = "\U0001f600" * KIND_LENGTH_MAX
    assert read_subject(subject_name("did:key:" + "z" * 48, "announced", kind)).kind == kind
    for make in (subject_name, subject_pattern):
        with pytest.raises(Malformed):
            make("c", "t", "x" * NAME_CHARS_MAX)
        with pytest.raises(Malformed):
            make("c", "t", "\ud800")
