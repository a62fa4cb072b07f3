"""Unpacking: whole or not at all, and nowhere else; whoever signed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, BundleError, JobError
from atoll.runtime.bundle import LIMITS, BundleLimits, Manifest, Verified, require_names, unpack
from tests.support.forging import check, forged, tree

JOB = ("job.yaml", b"name: x\n")
FILES = [JOB, ("source/a.py", b"x = 1\n" * 50_000), ("source/pkg/b.py", b"")]


def test_the_files_are_there_and_nothing_else(tmp_path: Path) -> None:
    bundle = forged(FILES)
    unpack(bundle, check(bundle), tmp_path / "jobs" / "7")
    assert tree(tmp_path) == {"jobs": None, "jobs/7": None, "jobs/7/source": None, "jobs/7/source/pkg": None} | {
        f"jobs/7/{name}": content for name, content in FILES
    }
    assert {(tmp_path / "jobs/7" / name).stat().st_mode & 0o111 for name, _ in FILES} == {0}


def test_a_folder_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    bundle = forged(FILES)
    (tmp_path / "mine").write_text("keep")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("keep")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = tree(tmp_path)
    for name in ("mine", "full", "link"):
        with pytest.raises(JobError, match=r"the folder is taken"):
            unpack(bundle, check(bundle), tmp_path / name)
    assert tree(tmp_path) == before
    (tmp_path / "empty").mkdir()
    unpack(bundle, check(bundle), tmp_path / "empty")
    assert (tmp_path / "empty" / "job.yaml").read_bytes() == JOB[1]


def test_only_the_verified_bundle_is_unpacked(tmp_path: Path) -> None:
    """Verified once, exchanged on the way to unpacking."""
    good, evil = forged(FILES), forged([JOB, ("source/a.py", b"evil")])
    with pytest.raises(BundleError, match=r"not the bundle that was verified"):
        unpack(evil, check(good), tmp_path / "out")
    verified = check(good)
    swapped = forged([JOB, ("source/a.py", b"z" * 300_000), FILES[2]], manifest=verified.manifest)
    with pytest.raises(BundleError, match=r"'source/a\.py' is not the file that was signed"):
        unpack(swapped, verified, tmp_path / "out")
    assert tree(tmp_path) == {}


HOSTILE = [
    "/etc/passwd", "../out", "source/../../out", "source/./a", "source//a", "a/", "..", ".", "",
    "C:/a", "c:a", "source\\a", "..\\a", "\\\\host\\share", "a\x00b", "a\nb", "a\x1b[2J", "a\x7f",
    "nul", "source/COM1.py", "aux/a", "LPT².txt", "a.", "a ", " a", "a:stream", "a*", 'a"', "a<b", "a|b", "a?",
    ".bashrc", "source/.git/hooks/x", "__pycache__/a", "a.pyc", "e\u0301", "\u202egpj.exe", "a\u200bb", "\ufeffa",
    "x" * 256, "é" * 128, "/".join("a" * 40), "a/" * 700 + "a",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_even_when_well_signed(tmp_path: Path, name: str) -> None:
    bundle = forged(sorted([JOB, (name, b"evil")]))
    with pytest.raises(BundleError, match=r"the name .* is refused|not those that were signed"):
        check(bundle)
    _refused_here(bundle, sorted([JOB, (name, b"evil")]), tmp_path)


def _refused_here(bundle: bytes, files: list[tuple[str, bytes]], tmp_path: Path) -> None:
    """Even if verification were left out: unpacking checks by itself, and leaves nothing."""
    (tmp_path / "jobs").mkdir()
    signer = check(forged([JOB])).signer
    with pytest.raises(BundleError, match=r"bundle"):
        unpack(bundle, Verified(Manifest.of(files), signer, b""), tmp_path / "jobs" / "7")
    assert tree(tmp_path) == {"jobs": None}


@pytest.mark.parametrize(
    "names",
    [
        ("A.py", "a.py"), ("a", "a/b"), ("A", "a/b"), ("A/x", "a/y"), ("ß", "ss"), ("a/B/x", "a/b"), ("job.YAML", "x"),
        ("a", "a"),
    ],
)  # fmt: skip
def test_names_that_meet_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    files = sorted([JOB, *((name, b"") for name in names)])
    with pytest.raises(BundleError, match=r"the name .* is refused: .*(case|already|twice)"):
        check(forged(files))
    _refused_here(forged(files), files, tmp_path)


pieces = st.sampled_from(
    ["a", "b", "A", "..", ".", "", "C:", "nul", "x.py", "é", "e\u0301", "a ", ".git", "\\", "~", "$HOME", "-rf", "\x00"]
)
paths = st.lists(pieces, min_size=1, max_size=4).map("/".join)


@settings(max_examples=settings.default.max_examples, deadline=None)
@given(st.dictionaries(st.one_of(paths, st.text(max_size=8)), st.binary(max_size=20), max_size=4))
def test_any_names_are_refused_or_stay_inside(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    home = tmp_path_factory.mktemp("home")
    listed = sorted({**files, JOB[0]: JOB[1]}.items())
    try:
        bundle = forged(listed)
        unpack(bundle, check(bundle), home / "jobs" / "7")
    except (AtollError, UnicodeEncodeError):  # a lone surrogate cannot even be written into an archive
        assert tree(home) == {}
        return
    found = {name: content for name, content in tree(home).items() if content is not None}
    assert found == {f"jobs/7/{name}": content for name, content in listed}


@given(st.lists(st.one_of(paths, st.text(max_size=8)), max_size=5))
def test_names_that_are_let_through_are_distinct_and_inside(names: list[str]) -> None:
    try:
        require_names(names, LIMITS)
    except BundleError:
        return
    assert len({name.casefold() for name in names}) == len(names)
    for name in names:
        assert os.path.normpath(f"/top/{name}") == f"/top/{name}"
        assert Path("/top").joinpath(name).as_posix() == f"/top/{name}"


def test_limits_hold(tmp_path: Path) -> None:
    bundle = forged(FILES)
    verified = check(bundle)
    for limits, said in (
        (BundleLimits(file=1000), "and 1000 are allowed"),
        (BundleLimits(total=1000), "and 1000 are allowed"),
        (BundleLimits(bundle=1000), "and 1000 are allowed"),
        (BundleLimits(files=1), "more than 5 files"),
        (BundleLimits(depth=2), "folders deep"),
    ):
        with pytest.raises(BundleError, match=said):
            check(bundle, limits)
        with pytest.raises(BundleError, match=said):
            unpack(bundle, verified, tmp_path / "out", limits)
    assert tree(tmp_path) == {}


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, true_open = forged(FILES), os.open

    def full(path: object, flags: int, mode: int = 0o777, **more: object) -> int:
        if str(path).endswith("b.py"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return true_open(path, flags, mode, **more)  # type: ignore[call-overload, no-any-return]

    verified = check(bundle)
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(JobError, match=r"No space left"):
        unpack(bundle, verified, tmp_path / "out")
    assert tree(tmp_path) == {}
