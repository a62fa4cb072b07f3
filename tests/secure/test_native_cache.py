"""Native code is loaded only if this user has written it: planted libraries, between real processes, do not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.native import cpp_compiler

pytestmark = pytest.mark.network

COMPILER = pytest.mark.skipif(cpp_compiler() is None, reason="needs a C++ compiler, which is not installed")
ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: only it can write a file as another user, and would run it with most rights"
)
OTHER = 65534
HONEST = 'extern "C" long answer() { return 42; }'
PLANTED = (
    'extern "C" long answer() { return 13; }\n__attribute__((constructor)) static void run() { __builtin_trap(); }'
)
ASKED = f"""
import logging, sys
from atoll.native import library_of
logging.basicConfig(stream=sys.stdout, format="%(message)s")
print(library_of({HONEST!r}).answer())
"""


def asked(cache: Path) -> list[str]:
    """What a new process says that loads the library."""
    done = subprocess.run(
        [sys.executable, "-c", ASKED], capture_output=True, check=False, text=True, env={**os.environ, "ATOLL_CACHE": str(cache)}
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.splitlines()


def planted(at: Path) -> None:
    source = at.with_suffix(".cpp")
    source.write_text(PLANTED)
    compiler = cpp_compiler()
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(at)], check=True)
    source.unlink()


def libraries(cache: Path) -> list[Path]:
    return sorted((cache / "torch" / "native").glob("*.so"))


@COMPILER
def test_a_library_is_compiled_once_where_nobody_else_can_write(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert asked(cache) == ["42"]
    (made,) = libraries(cache)
    for folder in (cache / "torch", made.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    before = made.stat().st_mtime_ns
    (cache / "torch").chmod(0o755)  # as older versions made it
    assert asked(cache) == ["42"]
    assert (cache / "torch").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mtime_ns for path in libraries(cache)] == [before]


@COMPILER
def test_a_library_that_is_not_the_one_that_was_compiled_is_not_loaded(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    asked(cache)
    (made,) = libraries(cache)
    planted(made)
    told = asked(cache)
    assert told[-1] == "42"
    assert "is not the library that this user has compiled there" in told[0]
    assert asked(cache) == ["42"]  # and the cache is whole again


@COMPILER
@ROOT
def test_a_library_of_another_user_is_not_loaded(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    asked(cache)
    (made,) = libraries(cache)
    content = made.read_bytes()
    planted(made)
    # It has the digest in its name, and the folder is right: its owner alone is another.
    import hashlib

    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    evil = made.rename(made.with_name(f"{made.name.split('.')[0]}.{digest}.so"))
    os.chown(evil, OTHER, OTHER)
    told = asked(cache)
    assert told[-1] == "42"
    assert "is not the library that this user has compiled there" in told[0]
    assert content in [path.read_bytes() for path in libraries(cache)]


@COMPILER
@ROOT
@pytest.mark.parametrize("way", ["owner", "parent", "open"])
def test_a_folder_of_another_user_is_not_used(tmp_path: Path, way: str) -> None:
    cache = tmp_path / "cache"
    asked(cache)
    for path in libraries(cache):
        path.unlink()
    place = {"owner": cache / "torch" / "native", "parent": cache, "open": cache / "torch"}[way]
    if way == "open":
        place.chmod(0o777)
    else:
        os.chown(place, OTHER, OTHER)
    told = asked(cache)
    assert told[-1] == "42"
    assert "each process compiles native code anew, because of" in told[0]
    assert libraries(cache) == []
