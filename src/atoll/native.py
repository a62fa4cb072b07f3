"""From C++ text to a loaded library, compiled for this processor and cached between runs: what PyTorch models, trees and masks build on."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["cache_folder", "cpp_compiler", "library_of"]

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
    folder = cache_folder() / "native"
    found = folder / f"{name}.so"
    try:
        if not found.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as place:
                text, made = Path(place) / "step.cpp", Path(place) / "step.so"
                text.write_text(source)
                command = [compiler, *_FLAGS, str(text), "-o", str(made)]
                subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)
                made.replace(found)
        return ctypes.CDLL(str(found))
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    """Describe the processor's features, since the code is made for this one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
