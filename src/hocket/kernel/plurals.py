"""Counts as people read them: `1 job`, `2 jobs`, `1.5 seconds`."""


def counted(count: float, noun: str) -> str:
    number = f"{count:g}" if isinstance(count, float) else str(count)
    return f"{number} {noun}{'' if count == 1 else 's'}"
