"""Statements that a long program has in several places, as one function each: a compiler's time grows with the text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from .values import Body, CodeStatement

__all__ = ["share"]

_LONG = 150  # statements; a program with fewer compiles in a second or two, and its calls would cost some of its speed
_NAME = re.compile(r"\b[xtk]\d+\b")  # a column, a buffer, a constant


def share(bodies: Mapping[str, Body], columns: Mapping[str, str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return functions, and each body's lines, which call them.

    Two statements are alike if they differ in the buffers alone, or also in the number of entries that they go over. A function's arguments
    are that number, the flag of look-ups outside, and the buffers, which do not overlap. Programs of few statements stay as they are.

    Args:
        bodies: by name.
        columns: types of the columns' entries, by name.
    """
    written = {name: [_Written(line, body.types, columns) for line in body.lines] for name, body in bodies.items()}
    found = Counter(one.key for lines in written.values() for one in lines if one.key is not None)
    functions: dict[tuple[str, ...], str] = {}
    if sum(found.values()) >= _LONG:
        functions = {key: f"same{i}" for i, key in enumerate(key for key, times in found.items() if times > 1)}
    texts = [_function(name, *key) for key, name in functions.items()]
    return texts, {name: [text for one in lines for text in one.lines(functions)] for name, lines in written.items()}


class _Written:
    """A line of a body.

    Attributes:
        key: the text with buffers by their order, and their types; ``None`` if it is not a statement.
    """

    def __init__(self, line: str | CodeStatement, types: Mapping[str, str], columns: Mapping[str, str]) -> None:
        self._line = line
        self.key: tuple[str, ...] | None = None
        if isinstance(line, CodeStatement):
            text = "\n".join(line.general or line.lines)
            self._names = list(dict.fromkeys(_NAME.findall(text)))
            order = {name: f"a{i}" for i, name in enumerate(self._names)}
            kinds = [types.get(name) or columns[name] for name in self._names]
            self.key = (_NAME.sub(lambda found: order[found[0]], text), *kinds)

    def lines(self, functions: Mapping[tuple[str, ...], str]) -> Sequence[str]:
        """Return its text, given the functions by key."""
        if isinstance(self._line, str):
            return [self._line]
        if self.key is None or self.key not in functions:
            return self._line.lines
        return [f"{functions[self.key]}({', '.join([str(self._line.entries), 'bad', *self._names])});"]


def _function(name: str, text: str, *kinds: str) -> str:
    buffers = [f"{kind}* __restrict a{i}" for i, kind in enumerate(kinds)]
    head = f"APART void {name}({', '.join(['int n', 'i64& bad', *buffers])})"
    return f"{head} {{\n(void)n; (void)bad;\n{text}\n}}"
