"""Whether a request names this machine in its Host header. Metrics are given without a token to callers on this
machine, and a browser is one: a web page whose own name was pointed at this machine's address (DNS rebinding) reads
what this machine answers, and then the header has the page's name. No one outside can give a page an address in
digits, or a name without a dot.
"""

import re
import socket
from ipaddress import ip_address

_HOST = re.compile(r"\[([^\]]*)\](?::[0-9]*)?|([^:]*)(?::[0-9]*)?")


def names_this_machine(host: str | None, bound: str = "") -> bool:
    """`host` is the header, None if there was none, as from no browser. `bound` is the name that the operator gave to
    the server's socket.
    """
    if host is None:
        return True
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return False
    name = (found[1] or found[2] or "").lower()
    try:
        ip_address(name)
        return True
    except ValueError:
        is_local = "." not in name or name.endswith(".localhost")
        return bool(name) and (is_local or name in (bound.lower(), socket.gethostname().lower()))
