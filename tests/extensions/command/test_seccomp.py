"""The filter of system calls, on each machine that it knows, as the kernel would run it."""

import errno
import struct

import pytest

from hocket.extensions.command.sandbox import _MACHINES, _REFUSED, _assembled

X86_64, AARCH64 = _MACHINES["x86_64"], _MACHINES["aarch64"]
ALLOWED, KILLED = 0x7FFF_0000, 0x8000_0000
REFUSED, ABSENT, NO_FAMILY = (0x0005_0000 | each for each in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))


def verdict(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """A classic BPF machine with the five instructions that the filter uses."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *(0,) * (6 - len(arguments)))
    steps = [*struct.iter_unpack("=HBBI", program)]
    held = at = 0
    while True:
        code, then, otherwise, value = steps[at]
        at += 1
        if code == 0x20:
            held = int.from_bytes(data[value : value + 4], "little")
        elif code == 0x06:
            return int(value)
        else:
            is_so = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            at += then if is_so else otherwise


@pytest.mark.parametrize("name", [*_MACHINES])
def test_what_is_refused(name: str) -> None:
    machine = _MACHINES[name]
    program, column = _assembled(machine), machine.column
    assert len(program) % 8 == 0 and len(program) // 8 <= 4096, "the kernel takes no more steps"

    def call(numbers: tuple[int, int], *arguments: int) -> int:
        return verdict(program, machine.architecture, numbers[column], *arguments)

    for what, numbers in _REFUSED.items():
        if (number := numbers[column]) is not None:
            assert verdict(program, machine.architecture, number) == REFUSED, what
    assert {call((each, each)) for each in (425, 426, 427, 435)} == {ABSENT}
    clone, unshare, ioctl, socket, pair = (56, 220), (272, 97), (16, 29), (41, 198), (53, 199)
    for flags in (0x2000_0000, 0x1000_0000 | 17, 0x0002_0000, 0x4000_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000):
        assert call(clone, flags) == call(unshare, flags) == REFUSED, hex(flags)
    assert call(clone, 0x003D_0F00) == ALLOWED, "a thread"
    assert call(clone, 0x0120_0011) == ALLOWED, "a fork"
    assert call(unshare, 0x80) == REFUSED and call(unshare, 0x400) == ALLOWED
    assert call(ioctl, 0, 0x5412) == call(ioctl, 0, 0x541C) == REFUSED
    assert call(ioctl, 0, 0x1_0000_5412) == REFUSED, "the kernel looks at half of the number"
    assert call(ioctl, 0, 0x5413) == ALLOWED
    for family in (1, 2, 10):
        assert call(socket, family) == call(pair, family) == ALLOWED
    assert call(socket, 16, 3, 0) == ALLOWED and call(socket, 16, 3, 9) == NO_FAMILY
    for family in (0, 3, 9, 17, 38, 40):
        assert call(socket, family) == NO_FAMILY, family
    for ordinary in ((0, 63), (1, 64), (59, 221), (231, 94)):
        assert call(ordinary) == ALLOWED, "read, write, execve, exit_group"


def test_calls_of_another_architecture_kill() -> None:
    for machine in (X86_64, AARCH64):
        assert verdict(_assembled(machine), 0x4000_0003, 1) == KILLED, "32-bit programs"
    assert verdict(_assembled(X86_64), X86_64.architecture, 0x4000_0001) == KILLED, "x32 on x86-64"
