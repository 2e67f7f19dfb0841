"""A program that uses this node over HTTP with a token."""

from typing import NamedTuple

from hocket.errors import NotAuthorised
from hocket.kernel.capabilities import Grant


class Program(NamedTuple):
    """A program that has shown its token, and what it may do now. One without an `agent` speaks for any agent."""

    name: str
    agent: str | None
    grants: tuple[Grant, ...]

    def may(self, resource: str, action: str, words: tuple[str, ...] = (), scope: str | None = None) -> bool:
        return any(grant.admits(resource, action, words, scope) for grant in self.grants)

    def may_some(self, resource: str, action: str) -> bool:
        """Whether it may do this to something."""
        return any(grant.covers(resource, action) for grant in self.grants)

    def agent_named(self, name: str | None) -> str:
        """The agent for which a request of this program is done. Raises NotAuthorised if that is another's."""
        own = self.name if self.agent is None else self.agent
        if name is None or name == own or self.agent is None or name.startswith(f"{own}/"):
            return own if name is None else name
        raise NotAuthorised(f"this token speaks for the agent {own} and for {own}/…, not for {name!r}")
