"""The program of a signing process: reads a key's seed, then batches of messages, and answers each batch with its
signatures. It runs as a script, imports nothing of Hocket, and ends when its input does.

A batch is the number of messages, the size of each (four bytes, big-endian), and the messages. An answer is that many
signatures of 64 bytes. One byte says that it is ready.
"""

import signal
import struct
import sys


def main() -> None:
    # The parent decides what Ctrl-C means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    source, out = sys.stdin.buffer, sys.stdout.buffer
    sign = Ed25519PrivateKey.from_private_bytes(source.read(32)).sign
    out.write(b"\x01")
    out.flush()
    while head := source.read(4):
        (count,) = struct.unpack(">I", head)
        sizes = struct.unpack(f">{count}I", source.read(4 * count))
        messages = [source.read(size) for size in sizes]
        out.write(b"".join([sign(message) for message in messages]))
        out.flush()


if __name__ == "__main__":
    try:
        main()
    except (OSError, struct.error):
        pass  # the parent has died
