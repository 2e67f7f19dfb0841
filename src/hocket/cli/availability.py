"""`hocket drain`, `hocket quarantine` and `hocket resume`: whether a node takes new work."""

from hocket.cli.derived import app_of
from hocket.service import nodes

drain_app, quarantine_app, resume_app = app_of(nodes.drain), app_of(nodes.quarantine), app_of(nodes.resume)
