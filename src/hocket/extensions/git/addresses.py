"""Where a repository is: on this disk, or elsewhere."""

import re
from pathlib import Path


def is_address(where: str) -> bool:
    """Whether git would look for this elsewhere than on this disk."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", where):
        return True
    return re.match(r"[^/:]+:", where) is not None and not Path(where).exists()
