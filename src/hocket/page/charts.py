"""Small drawings as SVG, made on the server: they need no script, and a screen reader gets a sentence instead."""

from collections.abc import Sequence

from markupsafe import Markup

WIDTH, HEIGHT = 240, 36


def bars(values: Sequence[int | None], sentence: str, tone: str = "") -> Markup:
    """A bar for each value; none where the value is not known."""
    most = max((each for each in values if each is not None), default=0)
    step = WIDTH / max(1, len(values))
    rectangles = Markup("").join(
        Markup('<rect x="{}" y="{}" width="{}" height="{}"/>').format(
            f"{place * step:.1f}", f"{HEIGHT - height:.1f}", f"{step * 0.8:.1f}", f"{height:.1f}"
        )
        for place, value in enumerate(values)
        if value
        for height in (max(2.0, HEIGHT * value / most),)
    )
    return Markup(
        '<svg class="bars {}" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>'
    ).format(tone, WIDTH, HEIGHT, sentence, rectangles)
