"""How a command names kinds: `acme.` with its dot stands for every kind below it, `acme.render` for that kind alone."""


def covers(wanted: str, kind: str) -> bool:
    return kind.startswith(wanted) if wanted.endswith(".") else kind == wanted
