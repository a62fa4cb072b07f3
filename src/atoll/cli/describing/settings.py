"""The words of ``atoll stats`` as settings of the job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.core.errors import ConfigError, DataError
from atoll.data import DataTable

__all__ = ["conditions_of", "lists_of", "ranges_of", "shares_of", "tables_of", "words_of"]

_CONDITION = re.compile(r"\s*(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*")


def tables_of(files: Sequence[Path], **options: Any) -> dict[str, DataTable]:
    """One table a site: the file's name without its ending is the site's; folders before it are added where two are equal.

    Raises:
        DataError: a file is not there, or cannot be read.
    """
    for file in files:
        if not file.is_file():
            raise DataError("there is no such file", where=str(file), remedy="give one CSV or Parquet file a site")
    resolved = [file.resolve() for file in files]
    parts = 1
    while len({"/".join(file.with_suffix("").parts[-parts:]) for file in resolved}) < len(set(resolved)):
        parts += 1
    names = ["/".join(file.with_suffix("").parts[-parts:]) for file in resolved]
    if len(set(names)) < len(names):
        raise DataError("a file is given twice", where=str(files[0]), remedy="give each site's file once")
    return {name: DataTable.read(file, **options) for name, file in zip(names, files, strict=True)}


def words_of(text: str | None) -> list[str]:
    """``a,b`` as a list."""
    return [word.strip() for word in text.split(",") if word.strip()] if text else []


def shares_of(text: str | None) -> list[float]:
    """``0.25,0.5`` as numbers.

    Raises:
        ConfigError: a word is no number.
    """
    return [_number(word, "--quantiles", "give shares from 0 to 1, such as 0.25,0.5,0.75") for word in words_of(text)]


def ranges_of(texts: Sequence[str]) -> dict[str, list[float]]:
    """``age=0:120`` as a mapping.

    Raises:
        ConfigError: it is written otherwise.
    """
    found = {}
    for text in texts:
        column, _, ends = text.rpartition("=")
        low, colon, high = ends.partition(":")
        if not column or not colon:
            raise ConfigError(f"--range {text}", remedy="write COLUMN=LOW:HIGH, such as age=0:120")
        found[column] = [_number(end, f"--range {text}", "write COLUMN=LOW:HIGH") for end in (low, high)]
    return found


def lists_of(texts: Sequence[str]) -> dict[str, list[str]]:
    """``ward=surgery,internal`` as a mapping.

    Raises:
        ConfigError: it is written otherwise.
    """
    found = {}
    for text in texts:
        column, equals, values = text.partition("=")
        if not equals or not words_of(values):
            raise ConfigError(f"--categories {text}", remedy="write COLUMN=VALUE,VALUE, such as ward=surgery,internal")
        found[column.strip()] = words_of(values)
    return found


def conditions_of(texts: Sequence[str], tables: Mapping[str, DataTable]) -> list[list[Any]]:
    """``age >= 18`` as conditions; a value is a number where the column of the first file that has it holds numbers.

    Raises:
        ConfigError: it is written otherwise.
    """
    found: list[list[Any]] = []
    for text in texts:
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise ConfigError(f"--where {text!r}", remedy="write a condition such as 'age >= 18' or 'ward == surgery'")
        column, sign, value = match.groups()
        numeric = next((t[column].dtype.kind in "biuf" for t in tables.values() if column in t), False)
        found.append(
            [column, sign, _number(value, f"--where {text!r}", "compare it with a number") if numeric else value]
        )
    return found


def _number(word: str, where: str, remedy: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"{where}: {word!r} is not a number", remedy=remedy) from None
