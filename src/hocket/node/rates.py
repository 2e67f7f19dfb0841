"""The rate card of a node: the file that $HOCKET_RATES names, else `rates.yaml` in its home."""

from pathlib import Path

from hocket.errors import Usage
from hocket.kernel.rate_card import BadRateCard, RateCard, read_rate_card
from hocket.kernel.yaml_subset import TEXT_BYTES_MAX
from hocket.node.home import Home
from hocket.node.variables import RATES, given

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


def need_rates(home: Home, path: Path | str | None = None) -> RateCard:
    found = rates_of(home, path)
    if found is None:
        raise Usage(f"this node has no rate card; write {home.path / FILE}, or name one with ${RATES}")
    return found
