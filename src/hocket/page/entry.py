"""Who may use the page: which host names it answers to, the cookie of a browser that entered, and whether a form is our
own. A page of another site cannot read ours, put it in a frame, or send its forms.
"""

import hmac
import socket
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import urlsplit

from hocket.errors import HocketError
from hocket.kernel.ids import content_hash

FORM_FIELD = "form_key"


class ForeignRequest(HocketError):
    """A form that none of our pages sent, or a host name that is not this server's."""

    exit_code = 4


class PageEntry:
    """`address` is that of the server, which says by which name it may be called; `node` tells the cookies of servers
    on one machine apart, since a browser does not look at the port.
    """

    def __init__(self, address: str, base: str, node: str) -> None:
        where = urlsplit(address)
        self._hosts = {"localhost", socket.gethostname().lower(), (where.hostname or "").lower()}
        self._is_tls, self._base, self._cookie = where.scheme == "https", base, f"hocket_{node}"

    def check_host(self, headers: Mapping[str, str]) -> None:
        """A site whose name suddenly means this machine could otherwise read the page. Raises ForeignRequest."""
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if host.lower() in self._hosts or host.lower().endswith(".localhost") or _is_address(host):
            return
        raise ForeignRequest(
            f"this server is not called {host!r}; start it with `hocket mesh serve --address https://{host or 'NAME'}`"
        )

    def token(self, headers: Mapping[str, str]) -> str:
        """The token in the cookie; empty if there is none."""
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return "" if cookie is None else cookie.value

    def cookie(self, token: str, lifetime_ms: int, headers: Mapping[str, str]) -> str:
        """The header that gives a browser this token; with an empty one it forgets its own."""
        is_secure = self._is_tls or headers.get("x-forwarded-proto") == "https"
        flags = "; Secure" if is_secure else ""
        age = lifetime_ms // 1000 if token else 0
        return f"{self._cookie}={token}; Path={self._base}/; Max-Age={age}; HttpOnly; SameSite=Lax{flags}"

    def check_form(self, headers: Mapping[str, str], key: str, token: str) -> None:
        """Raises ForeignRequest for a form that is not of a page that this browser got from here."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        host = headers.get("host", "").lower()
        is_ours = origin is None or urlsplit(origin).netloc.lower() == host
        if not is_ours or site not in ("same-origin", "none") or not hmac.compare_digest(key, form_key(token)):
            raise ForeignRequest("this form is not from this page, or the page is old; load it again")


def form_key(token: str) -> str:
    """What stands in each form of a browser with this token, and nobody else can know."""
    return content_hash(b"form " + token.encode()).hex()[:32]


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
