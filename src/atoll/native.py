"""From C++ text to a loaded library, compiled for this processor and cached between runs: what PyTorch models, trees and masks build on.

A library is code, so one is loaded only if this user has written it: from a folder that nobody else may enter, owned by this
user like the file, with the digest that its name has. Anything else is compiled anew; where the folder itself is somebody
else's, in a folder of this process, and the log says so.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

__all__ = ["cache_folder", "cpp_compiler", "library_of", "private_cache"]

_LOG = logging.getLogger("atoll")

# Without math-errno and trapping-math loops with comparisons become vector code; results stay IEEE, NaN and infinity included.
_FLAGS = (
    "-O2",
    "-ftree-vectorize",
    "-march=native",
    "-std=c++17",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-pthread",
    "-shared",
)
_TIMEOUT = 300.0


def cache_folder() -> Path:
    """Return the folder that keeps compiled kernels between runs.

    ``ATOLL_CACHE``, else ``XDG_CACHE_HOME/atoll``, else ``~/.cache/atoll``; in it the folder ``torch``.
    """
    given = os.environ.get("ATOLL_CACHE")
    if given:
        return Path(given) / "torch"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "atoll" / "torch"


def cpp_compiler() -> str | None:
    """Return the C++ compiler that PyTorch's code generator would call, or ``None``."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["g++", "clang++", "c++"]
    return next((found for name in candidates if (found := shutil.which(name))), None)


def library_of(source: str) -> ctypes.CDLL | None:
    """Compile, or take what an earlier run compiled on such a machine; ``None`` if that is impossible."""
    compiler = cpp_compiler()
    if compiler is None or os.name != "posix":
        return None
    stamp = Path(compiler).resolve().stat()
    facts = (source, _FLAGS, compiler, stamp.st_size, stamp.st_mtime_ns, platform.machine(), _processor())
    name = hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
    try:
        folder = private_cache("native")
        found = next((path for path in sorted(folder.glob(f"{name}.*.so")) if _is_own(path)), None)
        return ctypes.CDLL(str(found or _compile_library(source, compiler, folder, name)))
    except (OSError, subprocess.SubprocessError):
        return None


def private_cache(*below: str) -> Path:
    """Return the folder of `cache_folder`, or one in it, if only this user can have written there; else one of this process alone.

    Raises:
        OSError: it cannot be made.
    """
    folder = cache_folder().joinpath(*below)
    for depth in range(len(below) + 1):
        part = cache_folder().joinpath(*below[:depth])
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
        if why := _why_not_private(part):
            made = _own_folder(str(folder), why).joinpath(*below)
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
            return made
    return folder


@functools.cache
def _own_folder(instead_of: str, why: str) -> Path:
    """Make a folder that goes with this process, and say why."""
    _LOG.warning(
        "each process compiles native code anew, because of %s: %s. Move it away, or set ATOLL_CACHE", instead_of, why
    )
    made = tempfile.mkdtemp(prefix="atoll-native-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _why_not_private(folder: Path) -> str:
    """Return who else may have written in a folder, in words; nothing if nobody. One of this user's that is open to others is closed."""
    if os.name != "posix":
        return ""
    me, found = os.geteuid(), folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "it is no folder"
    if found.st_uid != me:
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & 0o022:
        return "others may write there"
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    for above in folder.absolute().parents:
        found = above.stat()
        if found.st_uid not in (0, me):
            return f"{above} belongs to user {found.st_uid}"
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return f"others may write in {above}"
    return ""


def _is_own(path: Path) -> bool:
    """Tell whether this user has written a library, and it is as it was written."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        own = os.name != "posix" or (found.st_uid == os.geteuid() and not found.st_mode & 0o022)
        if own and stat.S_ISREG(found.st_mode) and _digest(file.read()) == path.suffixes[0].removeprefix("."):
            return True
    _LOG.warning("%s is not the library that this user has compiled there: it is not loaded, but compiled anew", path)
    return False


def _compile_library(source: str, compiler: str, folder: Path, name: str) -> Path:
    """Compile a library into a folder, with its digest in its name."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        text, made = Path(place) / "step.cpp", Path(place) / "step.so"
        text.write_text(source)
        command = [compiler, *_FLAGS, str(text), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)
        made.chmod(0o700)
        path: Path = made.replace(folder / f"{name}.{_digest(made.read_bytes())}.so")
        return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _processor() -> str:
    """Describe the processor's features, since the code is made for this one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
