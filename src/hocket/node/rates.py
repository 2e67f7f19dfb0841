"""The rate card of a node: the file that $HOCKET_RATES names, else `rates.yaml` in its home."""

from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import Usage
from hocket.kernel.clock import Hlc
from hocket.kernel.rate_card import BadRateCard, RateCard, read_rate_card
from hocket.kernel.yaml_subset import TEXT_BYTES_MAX
from hocket.node.home import Home
from hocket.node.tempo_policy import tempo_policy
from hocket.node.variables import RATES, given

if TYPE_CHECKING:
    from hocket.work.costs import Prices

FILE = "rates.yaml"


def rates_of(home: Home, path: Path | str | None = None) -> RateCard | None:
    """The card at `path`, or the node's own; None if it has none. Raises Usage with what is wrong in the file."""
    named = path or given(RATES)
    file = Path(named).expanduser() if named else home.path / FILE
    try:
        with file.open("rb") as opened:
            return read_rate_card(opened.read(TEXT_BYTES_MAX + 1))
    except FileNotFoundError:
        if named is None:
            return None
        raise Usage(f"no rate card at {file}") from None
    except OSError as error:
        raise Usage(f"cannot read the rate card {file}: {error.strerror}") from None
    except BadRateCard as error:
        raise Usage(f"bad rate card {file}: {error}") from None


def prices_of(home: Home, card: RateCard, now: Hlc) -> "Prices":
    """A run that does not say its beat is charged by that of the home's tempo, if it has one."""
    from hocket.work.costs import Prices

    policy = tempo_policy(home)
    return Prices(card, card.beat_ms if policy is None else policy.initial_tempo.beat_ms, now.wall)


def need_rates(home: Home, path: Path | str | None = None) -> RateCard:
    found = rates_of(home, path)
    if found is None:
        raise Usage(f"this node has no rate card; write {home.path / FILE}, or name one with ${RATES}")
    return found
