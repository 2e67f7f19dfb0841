"""The kept output of runs: its beginning and its end, whatever is written and whoever reads meanwhile; never more than
the limits allow; and never a reason for a run to fail.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.work import output_files
from hocket.work.output_files import HANDLER, OutputFiles

JOB = "01J9ZC3VJ5W6QX8Y2N4M7K9TAB"
ALL = 1 << 30


SMALL = {"HEAD_BYTES": 10, "RING_BYTES": 20, "STEP_BYTES": 4, "_RING_KEPT": 16}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(output_files, name, value)


def whole(files: OutputFiles, fence: int = 0, start: int = 0) -> dict[int, bytes]:
    """Everything that can be read from a position on: each gapless piece under its position."""
    found: dict[int, bytes] = {}
    end = -1
    while (part := files.read(JOB, HANDLER, fence, start, 7)) is not None and part.data:
        first = next(reversed(found)) if found and part.start == end else part.start
        found[first] = found.get(first, b"") + part.data
        fence, start, end = part.fence, part.end, part.end
    return found


def test_short_output_is_kept_whole_and_readable_at_once(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path / "output")
    assert files.read(JOB, HANDLER, 0, 0, ALL) is None and not (tmp_path / "output").exists()
    file = files.file(JOB, 3, HANDLER)
    file.write(b"one\n")
    assert files.read(JOB, HANDLER, 0, 0, ALL) == (3, 0, b"one\n", 4, False)
    file.write(b"two\n")
    assert files.read(JOB, HANDLER, 3, 4, ALL) == (3, 4, b"two\n", 8, False)
    file.close()
    assert files.read(JOB, HANDLER, 3, 8, ALL) == (3, 8, b"", 8, True)
    assert [oct(path.stat().st_mode & 0o777) for path in (tmp_path / "output").rglob("*")] == ["0o700", "0o600"]


def test_a_run_without_output_leaves_nothing(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path / "output")
    files.file(JOB, 1, HANDLER).close()
    assert not (tmp_path / "output").exists()


@given(chunks=st.lists(st.binary(max_size=40), max_size=12))
def test_long_output_keeps_its_beginning_and_its_end(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(output_files, name, value)
        directory = tmp_path_factory.mktemp("output")
        files = OutputFiles(directory)
        file = files.file(JOB, 1, HANDLER)
        for chunk in chunks:
            file.write(chunk)
        written = b"".join(chunks)
        if len(written) <= 26:
            assert whole(files) == ({0: written} if written else {})
        else:
            assert whole(files) == {0: written[:10], len(written) - 16: written[-16:]}
        assert sum(path.stat().st_size for path in directory.glob("*/*")) <= 24 + 30


def test_a_follower_sees_all_of_a_stream_that_never_ends(tmp_path: Path, small: None) -> None:
    files = OutputFiles(tmp_path)
    file = files.file(JOB, 1, HANDLER)
    seen, at = b"", 0
    for number in range(200):
        file.write(b"%04d\n" % number)
        while (part := files.read(JOB, HANDLER, 1, at, ALL)) is not None and part.data:
            assert part.start == at
            seen, at = seen + part.data, part.end
    assert seen == b"".join(b"%04d\n" % number for number in range(200))


def test_what_is_overwritten_while_it_is_read_does_not_count(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OutputFiles(tmp_path)
    file = files.file(JOB, 1, HANDLER)
    written = bytes(range(200))
    file.write(written[:100])
    reads, read = iter(range(10)), os.pread

    def slow(fd: int, size: int, offset: int) -> bytes:
        if next(reads) == 1:  # after the header, before the bytes
            file.write(written[100:150])
        return read(fd, size, offset)

    monkeypatch.setattr(output_files.os, "pread", slow)
    part = files.read(JOB, HANDLER, 1, 90, ALL)
    assert part is not None and part.data and part.data == written[part.start : part.end]


def test_the_next_run_follows_the_last_byte_of_the_one_before(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path)
    first, second = files.file(JOB, 1, HANDLER), files.file(JOB, 2, HANDLER)
    first.write(b"first")
    second.write(b"second")
    assert files.read(JOB, HANDLER, 1, 2, ALL) == (1, 2, b"rst", 5, False)
    assert files.read(JOB, HANDLER, 1, 5, ALL) == (2, 0, b"second", 6, False)
    assert files.read(JOB, HANDLER, 0, 0, ALL) == (2, 0, b"second", 6, False)
    assert files.read(JOB, HANDLER, 3, 0, ALL) is None
    assert files.read(JOB, "stdout", 0, 0, ALL) is None


def test_a_copy_takes_what_it_lacks_once(tmp_path: Path, small: None) -> None:
    files = OutputFiles(tmp_path)

    def copy(start: int, data: bytes, is_over: bool = False) -> int:
        file = files.file(JOB, 1, HANDLER)
        file.write_at(start, data, is_over)
        file.close(is_over=False)
        return file.total

    assert copy(0, b"01234") == 5
    assert copy(3, b"3456789ab") == 12
    assert copy(0, b"xxx") == 12
    assert copy(14, b"ef") == 16, "what lies between is lost"
    assert whole(files) == {0: b"0123456789", 14: b"ef"}
    assert copy(16, b"", is_over=True) == 16
    assert files.read(JOB, HANDLER, 1, 16, ALL) == (1, 16, b"", 16, True)


def test_a_copy_has_no_gap_in_its_beginning(tmp_path: Path) -> None:
    file = OutputFiles(tmp_path).file(JOB, 1, HANDLER)
    file.write_at(5, b"later", False)
    assert file.total == 0


def test_the_oldest_output_goes_when_there_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_files, "FILES_MAX", 5)
    monkeypatch.setattr(output_files, "CHECK_FILES", 2)
    files = OutputFiles(tmp_path)

    def fences() -> list[int]:
        return sorted(int(path.name.split(".")[1]) for path in tmp_path.glob("*/*"))

    for number in range(1, 13):
        file = files.file(JOB, number, HANDLER)
        file.write(b"x")
        file.close()
        (path,) = tmp_path.glob(f"*/{JOB}.{number}.*")
        os.utime(path, ns=(number, number))
        assert len(fences()) <= 5 + 2
    assert fences()[-4:] == [9, 10, 11, 12]
    monkeypatch.setattr(output_files, "ALL_BYTES_MAX", 60)
    files.clear()
    assert fences() == [11, 12]


def test_what_cannot_be_written_does_not_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / "output").write_text("a file where the directory should be")
    file = OutputFiles(tmp_path / "output").file(JOB, 1, HANDLER)
    file.write(b"lost")
    file.write(b"lost")
    file.close()


WRITER = """
import sys
from pathlib import Path
from hocket.work.output_files import HANDLER, OutputFiles
file = OutputFiles(Path(sys.argv[1])).file(sys.argv[2], 1, HANDLER)
for number in range(40_000):
    file.write(b"%099d\\n" % number)
file.close()
"""


def test_a_reader_in_another_process_never_sees_bytes_that_were_not_there(tmp_path: Path) -> None:
    """4 MB go through a ring of 768 KiB while they are read: every line is whole, and none comes twice."""
    files = OutputFiles(tmp_path)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), JOB])
    at, lines = 0, 0
    while True:
        part = files.read(JOB, HANDLER, 1, at, 1000)
        if part is None:
            assert writer.poll() in (None, 0)
            continue
        at = part.end
        for index, line in enumerate(part.data.splitlines()) if part.start % 100 == 0 else ():
            if len(line) == 99:
                assert int(line) == part.start // 100 + index
                lines += 1
        if part.is_over and at >= part.total:
            break
    assert writer.wait() == 0 and at == 4_000_000 and lines >= 2_000
