"""The words of ``atoll site KIT --data ...`` as a mapping that a process in another folder can load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll.core.errors import DataError

__all__ = ["site_spec"]


def site_spec(
    data: str,
    *,
    target: str | None = None,
    task: str | None = None,
    features: Sequence[str] = (),
    drop: Sequence[str] = (),
    base: str | Path | None = None,
) -> dict[str, Any]:
    """The words of a command line as a plain mapping that another process, in another folder, can load.

    Args:
        data: a file, a folder, two files ``x.npy,y.npy``, or ``module:factory``.
        target: target column of a table.
        task: see `atoll.data.About`.
        features: feature columns of a table; by default all others.
        drop: columns to leave out.
        base: what relative paths begin at; the working folder by default.

    Raises:
        DataError: there is no such file or folder.
    """
    base = Path.cwd() if base is None else Path(base)
    options = {"target": target, "task": task, "features": list(features), "drop": list(drop)}
    said = {name: value for name, value in options.items() if value}
    if _is_factory(data, base):
        return {"factory": data, "folder": str(base), **said}
    paths = [base / part.strip() for part in data.split(",")]
    for path in paths:
        if not path.exists():
            raise DataError(
                f"there is no file or folder {str(path)!r}",
                where="--data",
                remedy="give a CSV file or a folder of them, an .npz, two .npy files, a Parquet file, a YAML file, or module:factory",
            )
    return {"path": ",".join(str(path.resolve()) for path in paths), **said}


def _is_factory(data: str, base: Path) -> bool:
    module, colon, name = data.partition(":")
    words = [*module.split("."), *name.split(".")]
    return bool(colon) and all(word.isidentifier() for word in words) and not (base / data).exists()
