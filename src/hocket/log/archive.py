"""A log as a file: the postcard sequence of its ops, which any Likewise software can read. Export and import both
stream, so a log may have any size.
"""

from collections.abc import Callable, Iterator
from typing import BinaryIO

from hocket.errors import StoreError
from hocket.kernel.ops import MAX_OP_BYTES, Op, read_op
from hocket.kernel.postcard import Malformed, Reader, write_varint
from hocket.log import Admission, Log

BATCH = 1_000
CHUNK = 4 * MAX_OP_BYTES


def export_ops(log: Log, out: BinaryIO, progress: Callable[[int, int], None] = lambda done, total: None) -> int:
    """Writes every op in the order of arrival; returns how many. The facts of a bundle count like other ops."""
    with log.store.read() as session:
        total = session.entry_count()
        count = bytearray()
        write_varint(count, total)
        out.write(count)
        seq = done = 0
        check = session.row_check
        while rows := session.stored_entries(seq, BATCH):
            if check is not None and len(check.ops(rows)) < len(rows):
                raise StoreError(
                    f"an op between number {rows[0].seq} and {rows[-1].seq} is not the one that its author signed;"
                    " `hocket log verify` shows it"
                )
            for row in rows:
                out.write(log.signed(row.body))
            seq = rows[-1].seq
            done += len(rows)
            progress(done, total)
        return session.op_count()


def import_ops(log: Log, source: BinaryIO) -> Admission:
    """Admits every op of an exported log. Ops that are already here count as duplicates."""
    reading = OpReader(source)
    return log.admit(reading)._replace(unread=reading.unread)


class OpReader:
    """The ops of a sequence with their bytes. Nothing after an unreadable op can be found, so that op is the last;
    `unread` then counts the rest.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.unread = 0

    def __iter__(self) -> Iterator[tuple[bytes, Op | Malformed]]:
        buffer = self._source.read(CHUNK)
        reader = Reader(buffer)
        start = 0
        try:
            self.unread = reader.varint()
            while self.unread:
                self.unread -= 1
                if reader.remaining() < MAX_OP_BYTES and (more := self._source.read(CHUNK)):
                    buffer = buffer[reader.pos :] + more
                    reader = Reader(buffer)
                start = reader.pos
                op = read_op(reader)
                yield buffer[start : reader.pos], op
            start = reader.pos
            if reader.remaining() or self._source.read(1):
                raise Malformed("bytes follow the last op")
        except Malformed as error:
            yield buffer[start : start + 16], error
