"""Files are whole or absent; appends are whole or undone."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from atoll.core.errors import CheckpointError
from atoll.core.persistence.files import append_bytes, read_message, write_bytes, write_message


@pytest.fixture
def full_disk(monkeypatch):
    """After ``fail.on`` is set, every flush finds the disk full."""

    class Fail:
        on = False

    real = os.fsync

    def fsync(handle):
        if Fail.on:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return Fail


def test_a_full_disk_leaves_the_old_file(tmp_path, full_disk):
    path = tmp_path / "a" / "file"
    write_bytes(path, b"old")
    full_disk.on = True
    with pytest.raises(
        CheckpointError, match=r"could not write 3 bytes: No space left on device .*the previous checkpoint is intact"
    ):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_failed_append_is_undone(tmp_path, full_disk):
    path = tmp_path / "log"
    append_bytes(path, b"first")
    full_disk.on = True
    with pytest.raises(CheckpointError, match=r"could not append 6 bytes: No space left"):
        append_bytes(path, b"second")
    full_disk.on = False
    append_bytes(path, b"third")
    assert path.read_bytes() == b"firstthird"


def test_an_append_can_cut_a_torn_tail(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"whole\nto")
    append_bytes(path, b"next\n", at=6)
    assert path.read_bytes() == b"whole\nnext\n"


def test_messages_come_back_and_can_be_changed(tmp_path):
    path = tmp_path / "m.msg"
    write_message(path, {"x": np.arange(3.0)})
    back = read_message(path)
    back["x"][0] = 7.0
    assert back["x"].tolist() == [7.0, 1.0, 2.0]


@pytest.mark.parametrize("size", [0, 5, 30])
def test_a_torn_message_is_named(tmp_path, size):
    path = tmp_path / "m.msg"
    write_message(path, {"x": np.arange(30.0)})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"the file is damaged: .*m\.msg"):
        read_message(path)


def test_a_missing_message_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"could not read: No such file.*gone\.msg"):
        read_message(tmp_path / "gone.msg")


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX")
def test_nobody_reads_a_private_file_while_it_is_written(tmp_path):
    """Not even over a file that somebody else has put where the content is written first."""
    path, aside = tmp_path / "key", tmp_path / ".key.tmp"
    aside.write_bytes(b"")
    aside.chmod(0o666)
    with aside.open("rb") as reader:
        write_bytes(path, b"secret", private=True)
        assert reader.read() == b""
    assert path.read_bytes() == b"secret"
    assert path.stat().st_mode & 0o077 == 0
