"""What a browser, or a person with curl, gets at /v1: what this is, and where the descriptions are. It needs no token,
so it says nothing about this node. It runs no script and loads nothing.
"""

from base64 import b64encode
from hashlib import sha256
from html import escape

import msgspec

from hocket.kernel import __version__
from hocket.mesh import wire
from hocket.mesh.wire import Reply, Request

PATHS = ("/v1", "/v1/")
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff", "vary": "accept"}
_STYLE = """
:root { color-scheme: light dark }
body { font: 1.05rem/1.6 system-ui, sans-serif; max-width: 42rem; margin: 8vh auto; padding: 0 1.2rem }
h1 { font-weight: 600 }
code, pre { font-family: ui-monospace, monospace; font-size: .92em }
pre { overflow-x: auto; padding: .8rem 1rem; border: 1px solid color-mix(in srgb, currentColor 25%, transparent);
  border-radius: .4rem }
"""
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Hocket's HTTP API</title>
<style>{style}</style>
<h1>Hocket's HTTP API</h1>
<p>This server belongs to a node of <strong>Hocket {version}</strong>, a mesh of machines that share work. Programs in
any language use it here: jobs, locks, messages and rows.</p>
<p>There is nothing to see for a browser, because every request needs a token. Ask the owner of the node for one, who
makes it with a command:</p>
<pre>hocket token create NAME --may job:read</pre>
<pre>curl -H "Authorization: Bearer TOKEN" {base}/v1/jobs</pre>
<ul>
<li><a href="{base}/v1/openapi.json">The description of all paths</a>, in OpenAPI 3.1, for generators of clients</li>
<li>The guide is <code>docs/http.md</code> of the program, and its errors are in <code>docs/errors.md</code></li>
<li><a href="{base}/healthz">Whether this server is up</a>, and <a href="{base}/readyz">whether it can work</a></li>
</ul>
</html>
"""


class _Index(msgspec.Struct, frozen=True):
    name: str
    version: str
    description: str


def browser_page(request: Request, base: str) -> Reply:
    if request.method not in ("GET", "HEAD"):
        return Reply(405, {**_HEADERS, "allow": "GET, HEAD"})
    if "text/html" not in request.headers.get("accept", ""):
        index = _Index("Hocket", __version__, f"{base}/v1/openapi.json")
        return _reply(request, wire.JSON, msgspec.json.encode(index), {})
    style = b64encode(sha256(_STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    text = _PAGE.format(style=_STYLE, version=escape(__version__), base=escape(base))
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer"}
    return _reply(request, "text/html; charset=utf-8", text.encode(), headers)


def _reply(request: Request, content_type: str, body: bytes, headers: dict[str, str]) -> Reply:
    return Reply(200, {**_HEADERS, **headers, "content-type": content_type}, b"" if request.method == "HEAD" else body)
