"""A render farm of two workers. One is killed in the middle of a frame; the other renders it, and the film is whole.

python examples/render_farm/run.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from renders import HEIGHT, WIDTH, film, frame, shade

import hocket

HERE = Path(__file__).parent
FRAMES = 12


def expected() -> bytes:
    head = f"P5 {WIDTH} {HEIGHT} 255\n".encode()
    frames = (bytes(shade(number, x, y) for y in range(HEIGHT) for x in range(WIDTH)) for number in range(FRAMES))
    return b"".join(head + picture for picture in frames)


def play(home: Path) -> None:
    hocket.init(home)
    work = [sys.executable, "-m", "hocket", "--home", str(home), "work", str(HERE / "renders.py"), "--concurrency", "1"]
    power_cut = home.parent / "power-cut"
    power_cut.touch()
    with hocket.open(home) as node:
        frames = [
            node.submit(frame.using(tags="shot=7"), number=number, power_cut=power_cut if number == 5 else None)
            for number in range(FRAMES)
        ]
        whole = node.submit(film.using(after=frames, priority=10))
        workers = [subprocess.Popen(work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
        try:
            made = whole.result(timeout=120)
            killed = [each for each in workers if each.poll() is not None]
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
        content = hocket.admin(node).content(made)
        fence = frames[5].status()["fence"]
    if content != expected():
        raise SystemExit("the film is wrong")
    print(f"{FRAMES} frames, {len(content)} bytes of film, {len(killed)} worker killed")
    print(f"frame 5 was begun by the killed worker, and finished under fence {fence}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        play(Path(folder) / "home")
