"""Clients in processes of their own, which are killed and frozen at random for a while, and servers that are restarted
meanwhile.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cli.fork_server import start_command
from tests.histories.recording import Death
from tests.scenarios.machines import Machine

LONGEST_S = 60


class Client:
    """A client of a machine's home. Its successor has the same arguments."""

    def __init__(self, machine: Machine, name: str, words: Sequence[str]) -> None:
        self.machine, self.name, self.words = machine, name, words
        self.said = machine.root / f"client-{os.urandom(4).hex()}"
        with self.said.open("wb") as said:
            outputs = said.fileno(), said.fileno()
            module = f"tests.histories.{name}"
            self.popen = start_command(words, machine.environment, Path.cwd(), outputs, module=module)

    def kill(self) -> Death:
        before = time.monotonic()
        self.popen.kill()
        self.popen.wait()
        return Death(before, time.monotonic())

    def check(self) -> None:
        assert self.popen.poll() is None, self.said.read_text()

    def successor(self) -> "Client":
        return Client(self.machine, self.name, self.words)


def disturb(
    clients: list[Client],
    seconds: float,
    freeze_s: float,
    chance: random.Random,
    restart_server: Callable[[], None],
    ready: Callable[[], bool],
    calm: Callable[[list[Client]], None] = lambda clients: None,
    kills: float = 0.1,
    has_enough: Callable[[], bool] = lambda: True,
    restart_every_s: float | None = None,
    longest_s: float = LONGEST_S,
) -> dict[int, Death]:
    """Disturbs the clients for so long after they are ready, and on a busy machine until they have done enough; of the
    disturbances, `kills` are kills. Then calls `calm` while they run undisturbed. Gives when each of the killed
    processes died; at the end, all of them are.
    """
    died: dict[int, Death] = {}
    frozen: dict[int, tuple[Client, float]] = {}
    begin = None
    restart_every_s = restart_every_s or seconds / 4
    deadline = time.monotonic() + LONGEST_S
    next_restart = 0.0
    try:
        while begin is None or time.monotonic() < begin + seconds or not has_enough():
            now = time.monotonic()
            for client in clients:
                client.check()
            assert begin is None or now < begin + seconds + longest_s, "the clients did too little"
            if begin is None:
                assert now < deadline, [client.said.read_text() for client in clients]
                begin = now if ready() else None
                next_restart = now + restart_every_s
            else:
                for pid, (client, until) in list(frozen.items()):
                    if now >= until:
                        client.popen.send_signal(signal.SIGCONT)
                        del frozen[pid]
                awake = [client for client in clients if client.popen.pid not in frozen]
                victim = chance.choice(awake or clients)
                fate = chance.random()
                if fate < kills:
                    died[victim.popen.pid] = victim.kill()
                    frozen.pop(victim.popen.pid, None)
                    clients[clients.index(victim)] = victim.successor()
                elif fate < 0.5 and len(frozen) < 2:
                    victim.popen.send_signal(signal.SIGSTOP)
                    frozen[victim.popen.pid] = victim, now + chance.uniform(0.1, freeze_s)
                if now >= next_restart:
                    # A client that is frozen while it writes would hold up the server, which waits for its store.
                    for client, _ in frozen.values():
                        client.popen.send_signal(signal.SIGCONT)
                    frozen.clear()
                    restart_server()
                    next_restart = time.monotonic() + restart_every_s
            time.sleep(chance.uniform(0.05, 0.4))
        for client, _ in frozen.values():
            client.popen.send_signal(signal.SIGCONT)
        calm(clients)
    finally:
        for client in clients:
            died[client.popen.pid] = client.kill()
    return died
