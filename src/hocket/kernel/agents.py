"""The names of agents: the programs and people that act on a node. An address puts `@` and a node after the name, and a
group ends with a slash, so no name does.
"""

NAME_CHARS_MAX = 128
_EVERYBODY = "all"


def check_agent(name: str) -> str:
    """Raises ValueError with what is wrong."""
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise ValueError(f"an agent's name has 1 to {NAME_CHARS_MAX} characters")
    if not name.isprintable() or " " in name:
        raise ValueError(f"bad agent name {name!r}; use no spaces and no control characters")
    if "@" in name or name.endswith("/") or name == _EVERYBODY:
        raise ValueError(f"bad agent name {name!r}; a name has no @, does not end with / and is not `all`")
    return name
