"""The archive: one way to write it, no other read."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import BundleError
from atoll.runtime.bundle import members, write_archive

FILES = [("a.txt", b"hello\n" * 100), ("b/ü.py", b""), ("c", bytes(range(256)))]


def read(archive: bytes) -> list[tuple[str, bytes]]:
    return [(m.name, m.content) for m in members(archive, 100)]


names = st.text(min_size=1, max_size=20).filter(lambda s: "\x00" not in s and s.isprintable())


@given(st.lists(st.tuples(names, st.binary(max_size=300)), max_size=6, unique_by=lambda file: file[0]))
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
        members(bytes(archive), 100)
        assert bytes(archive) == write_archive(FILES)


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
        ordinary(compress_type=zipfile.ZIP_STORED, create_system=0),
    ],
)
def test_links_devices_and_extras_have_no_form(archive: bytes) -> None:
    with pytest.raises(BundleError, match=r"outside its files|compressed"):
        members(archive, 100)


def test_a_bomb_is_refused_before_it_is_opened() -> None:
    """256 MiB of zeros in 256 KiB, which claim any size: nothing is inflated."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(256 * 2**20))
    tracemalloc.start()
    with pytest.raises(BundleError, match=r"compressed, or overlap"):
        members(made.getvalue(), 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_files_that_lie_in_each_other_are_refused() -> None:
    """Many entries of the directory that name the same bytes would be read again and again."""
    one = write_archive([("a", b"x" * 1000)])
    end = one.index(b"PK\1\2")
    entry = one[end:-22]
    directory = entry * 50
    tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 50, 50, len(directory), end, 0)
    with pytest.raises(BundleError, match=r"compressed, or overlap"):
        members(one[:end] + directory + tail, 100)


@pytest.mark.parametrize("size", [0, 99, 101])
def test_a_size_that_is_not_true_is_refused(size: int) -> None:
    told = write_archive([("a", b"x" * 100)]).replace(struct.pack("<2I", 100, 100), struct.pack("<2I", size, size))
    with pytest.raises(BundleError, match=r"bundle"):
        members(told, 10)


def test_too_many_files_are_refused_before_they_are_looked_at() -> None:
    with pytest.raises(BundleError, match=r"more than 3 files"):
        members(write_archive([(str(n), b"") for n in range(4)]), 3)
