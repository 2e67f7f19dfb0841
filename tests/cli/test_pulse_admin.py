"""The admin routes of a pulse, with plain HTTP."""

import json
import urllib.error
import urllib.request
from datetime import datetime
from typing import Any

import pytest

from tests.cli.conftest import Program, until

TEMPO = {"cluster_id": "acme", "initial_bpm": 600, "bar_len_beats": 4, "limits": {"min_bpm": 60, "max_bpm": 1200}}


def unix_ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def ask(address: str, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


@pytest.mark.req("BB-23")
def test_a_pulse_tells_its_state_and_changes_its_tempo_on_a_downbeat(hocket: Program) -> None:
    (hocket.home / "tempo.yaml").write_text(json.dumps(TEMPO))
    pulse = hocket.start("pulse", "--metrics", "0", "--json")
    assert pulse.stderr is not None
    lines = (json.loads(line) for line in pulse.stderr)
    where = str(next(each["address"] for each in lines if each["type"] == "MetricsServed"))

    def led() -> dict[str, Any] | None:
        """Its answer once it leads and has heard its own first beat: until then its beats are degraded."""
        answer = ask(where, "/admin/pulse")[1]
        return answer if answer.get("leads") and not answer["degraded"] else None

    shown = until(led, "the lead")
    assert shown["frame"]["tempo_bpm"] == 600 and shown["fence"] > 0
    assert ask(where, "/admin/tempo", {"tempo_bpm": 300})[0] == 401, "without a token"
    tokens = {
        name: hocket("token", "create", name, "--may", may, "--json", code=0).json["token"]
        for name, may in (("ops", "lock:acquire:pulse:"), ("other", "job:schedule"))
    }
    may, may_not = ({"Authorization": f"Bearer {tokens[name]}"} for name in ("ops", "other"))
    assert ask(where, "/admin/tempo", {"tempo_bpm": 300}, **may_not)[0] == 403
    assert ask(where, "/admin/tempo", {"tempo_bpm": 30}, **may)[0] == 400, "beyond the limits"
    assert ask(where, "/admin/tempo", {"bpm": 300}, **may)[0] == 400
    status, changed = ask(where, "/admin/tempo", {"tempo_bpm": 300}, **may)
    assert (status, changed["tempo_bpm"]) == (200, 300)
    assert unix_ms(changed["since"]) % 400 == 0, "a downbeat of the old tempo"
    until(lambda: ask(where, "/admin/pulse")[1]["frame"]["tempo_bpm"] == 300, "the new tempo")

    def beat_in_force() -> bool:
        """A process that hears no beats knows the tempo in force, too."""
        held = hocket("lock", "acquire", "k", "--agent", "a", "--lease", "1b", "--json", code=0).json
        return (held["expires_ms"] - unix_ms(changed["since"])) % 200 == 0 and (hocket.home / "tempo.changes").exists()

    until(beat_in_force, "a lock that ends at a beat of the new tempo")
