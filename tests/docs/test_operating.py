"""The alerts on docs/operating.md name metrics that exist, and each has a line that says what to do."""

import re

import yaml

from tests.docs import reader
from tests.docs.reader import ROOT

PAGE = ROOT / "docs" / "operating.md"
METRICS = ROOT / "docs" / "metrics.md"


def rules() -> dict[str, str]:
    (block,) = [each for each in reader.blocks(PAGE) if each.language == "yaml"]
    return {rule["alert"]: rule["expr"] for group in yaml.safe_load(block.text)["groups"] for rule in group["rules"]}


def test_alerts_name_metrics_labels_and_values_that_exist() -> None:
    rows = re.findall(r"^\| `(hocket_\w+)` \| (\w+) \|([^|]*)\|([^\n]*)\|$", METRICS.read_text(encoding="utf-8"), re.M)
    known = {name + ("_bucket" if form == "histogram" else "") for name, form, _, _ in rows}
    words = {word for *_, labels, meaning in rows for word in re.findall(r"`(\w+)`", labels + meaning)}
    assert len(rules()) >= 10
    for alert, expression in rules().items():
        used = re.findall(r"hocket_\w+", expression)
        assert used and set(used) <= known, alert
        for label, value in re.findall(r'(\w+)="(\w+)"', expression):
            assert {label, value} <= words, alert


def test_every_alert_says_what_to_do() -> None:
    explained = re.findall(r"`(Hocket\w+)`", PAGE.read_text(encoding="utf-8"))
    assert sorted(explained) == sorted(rules())
