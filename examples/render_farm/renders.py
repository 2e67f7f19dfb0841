"""The handlers of a render farm: frames in bands, each of which a killed worker need not render again, and the film."""

import os
import signal
from pathlib import Path

import hocket

WIDTH, HEIGHT, BANDS = 64, 48, 6


def shade(frame: int, x: int, y: int) -> int:
    """A moving pattern, in the place of a real renderer."""
    return (x * y + frame * 7) % 256


@hocket.job("farm.frame", retries=2, timeout="10m", lease="10s")
def frame(ctx: hocket.Context, number: int, power_cut: Path | None = None) -> str:
    bands: list[str] = ctx.last_checkpoint or []
    for band in range(len(bands), BANDS):
        rows = range(band * HEIGHT // BANDS, (band + 1) * HEIGHT // BANDS)
        bands.append(bytes(shade(number, x, y) for y in rows for x in range(WIDTH)).hex())
        ctx.checkpoint(bands)
        ctx.progress({"band": band + 1, "of": BANDS})
        if band == 2 and power_cut is not None and power_cut.exists():
            power_cut.unlink()
            os.kill(os.getpid(), signal.SIGKILL)  # for the example: this machine loses its power, once
    picture = f"P5 {WIDTH} {HEIGHT} 255\n".encode() + bytes.fromhex("".join(bands))
    return ctx.artifact(picture, type="farm.picture", ttl="30d")


@hocket.job("farm.film")
def film(ctx: hocket.Context[hocket.SyncNode]) -> str:
    admin = hocket.admin(ctx.node)
    pictures = [admin.content(picture) for picture in ctx.results_of(frame)]
    return ctx.artifact(b"".join(pictures), type="farm.film")
