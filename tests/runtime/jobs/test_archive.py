"""The archive: one way to write it, no other read."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import BundleError
from atoll.runtime.jobs.archive import Member, inflated, members, write_archive

FILES = [("a.txt", b"hello\n" * 100), ("b/ü.py", b""), ("c", bytes(range(256)))]


def read(archive: bytes, most: int = 2**20) -> list[tuple[str, bytes]]:
    return [(m.name, b"".join(inflated(m, most))) for m in members(archive, 100)]


names = st.text(min_size=1, max_size=20).filter(lambda s: "\x00" not in s and s.isprintable())


@given(st.lists(st.tuples(names, st.binary(max_size=300)), max_size=6))
def test_what_is_written_is_read(files: list[tuple[str, bytes]]) -> None:
    assert read(write_archive(files)) == files


def test_other_programs_read_it_too() -> None:
    """The standard library's reader is the oracle for the format."""
    archive = zipfile.ZipFile(io.BytesIO(write_archive(FILES)))
    assert archive.testzip() is None
    assert [(i.filename, archive.read(i)) for i in archive.infolist()] == FILES
    assert {(i.date_time, i.external_attr >> 16) for i in archive.infolist()} == {((1980, 1, 1, 0, 0, 0), 0o100644)}


def test_it_is_the_same_every_time() -> None:
    assert write_archive(FILES) == write_archive(list(FILES))


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a + b"x",
        lambda a: b"x" + a,
        lambda a: a[:-1],
        lambda a: a[:-22] + a[-22:-2] + b"\x02\x00hi",  # a comment
        lambda a: a.replace(b"PK\1\2", b"PK\1\3", 1),
        lambda a: a[:10] + b"\x01" + a[11:],  # a time of its own
        lambda a: a[:6] + b"\x01\x08" + a[8:],  # encrypted
        lambda a: b"",
        lambda a: a[:20],
        lambda a: a[:-22] + write_archive([])[-22:],
    ],
)
def test_every_other_byte_is_refused(change: object) -> None:
    with pytest.raises(BundleError, match=r"bundle"):
        members(change(write_archive(FILES)), 100)  # type: ignore[operator]


@given(st.data())
def test_any_mutation_is_refused_or_means_the_same(data: st.DataObject) -> None:
    archive = bytearray(write_archive(FILES))
    at = data.draw(st.integers(0, len(archive) - 1))
    archive[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BundleError):
        assert read(bytes(archive)) == FILES  # the bits behind the end of a deflated stream mean nothing


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(content: bytes) -> None:
    for archive in (content, b"PK\3\4" + content):
        with pytest.raises(BundleError, match=r"bundle"):
            members(archive, 100)


def ordinary(mode: int = 0o100644, **header: object) -> bytes:
    """An archive as the standard library writes it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo("a.txt", (1980, 1, 1, 0, 0, 0))
        info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
        for key, value in header.items():
            setattr(info, key, value)
        archive.writestr(info, b"/etc/passwd")
    return made.getvalue()


@pytest.mark.parametrize(
    "archive",
    [
        ordinary(0o120777),  # a link
        ordinary(0o020644),  # a device
        ordinary(0o040755),  # a folder
        ordinary(0o104755),  # runs as its owner
        ordinary(extra=b"\x01\x00\x02\x00ab"),
        ordinary(comment=b"hi"),
        ordinary(date_time=(2020, 1, 1, 0, 0, 0)),
        ordinary(compress_type=zipfile.ZIP_STORED),
    ],
)
def test_links_devices_and_extras_have_no_form(archive: bytes) -> None:
    with pytest.raises(BundleError, match=r"not the directory|of its own"):
        members(archive, 100)


def lying(size: int, content: bytes) -> bytes:
    """An archive whose only file claims another size, everywhere."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = squeeze.compress(content) + squeeze.flush()
    member = Member("bomb", size, zlib.crc32(content[:size]), memoryview(packed))
    central = member.central(0)
    local = member.local() + packed
    return local + central + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central), len(local), 0)


def test_a_bomb_is_stopped_at_the_size_it_claims() -> None:
    """256 MiB of zeros in 256 KiB that claim to be 1000 bytes: memory stays within a few steps."""
    bomb = lying(1000, bytes(256 * 2**20))
    (member,) = members(bomb, 10)
    tracemalloc.start()
    with pytest.raises(BundleError, match=r"'bomb' is larger than the 1000 bytes"):
        list(inflated(member, 2**30))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_a_bomb_that_tells_the_truth_is_not_begun() -> None:
    (member,) = members(lying(64 * 2**20, bytes(64 * 2**20)), 10)
    with pytest.raises(BundleError, match=r"has 67108864 bytes, and 1000 are allowed"):
        next(inflated(member, 1000))


@pytest.mark.parametrize("size", [0, 99, 101])
def test_a_size_that_is_not_true_is_refused(size: int) -> None:
    (member,) = members(lying(size, b"x" * 100), 10)
    with pytest.raises(BundleError, match=r"larger than|not what its header says"):
        list(inflated(member, 1000))


def test_too_many_files_are_refused_before_they_are_looked_at() -> None:
    with pytest.raises(BundleError, match=r"more than 3 files"):
        members(write_archive([(str(n), b"") for n in range(4)]), 3)


def test_what_does_not_inflate_is_refused() -> None:
    for packed in (b"\xff\xff", b"", zlib.compress(b"x")[2:4]):
        with pytest.raises(BundleError, match=r"cannot be decompressed|cut short"):
            list(inflated(Member("a", 1, 0, memoryview(packed)), 10))


def test_bytes_behind_a_stream_are_refused() -> None:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = squeeze.compress(b"x") + squeeze.flush() + b"more"
    with pytest.raises(BundleError, match=r"not what its header says"):
        list(inflated(Member("a", 1, zlib.crc32(b"x"), memoryview(packed)), 10))
