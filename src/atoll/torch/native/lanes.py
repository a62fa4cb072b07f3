"""Elementwise expressions over a vector of lanes, for processors whose loads and stores can leave lanes out.

A row of ten entries is then one vector with six idle lanes, where a compiler would take eight entries together and two
separately. Expressions that mix types, or look entries up, are left to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .values import NativeLeaf, Value

__all__ = ["GUARD", "LaneRow", "Mixed", "loops", "nest"]

GUARD = "#if defined(__AVX512F__) && defined(__AVX512VL__)"
_SAME = (
    *(f"({{0}} {sign} {{1}})" for sign in ("+", "-", "*", "/", "==", "!=", "<", "<=", ">", ">=")),
    *(f"{name}({{0}}, {{1}})" for name in ("larger", "smaller")),
    *(f"{name}({{0}})" for name in ("relu", "f_exp", "f_log", "f_sigmoid", "f_tanh", "f_erf", "f_sqrt")),
    "(-{0})", "(1.0f / {0})", "(1.0f / f_sqrt({0}))", "({0})", "({0} * {0})", "({0} * {0} * {0})",
)  # fmt: skip
_TEXTS = {**{text: text for text in _SAME}, "({0} ? {1} : {2})": "pick({0}, {1}, {2})"}
_SOME = "some"
_SHORTEST = 4  # entries of a row; shorter ones are left to the compiler


class Mixed(Exception):  # noqa: N818 - not an error: the caller goes another way
    """The expression has something that is not a plain operation on floats."""


class LaneRow:
    """The innermost loop of a statement.

    Args:
        places: the C++ of each leaf's entry, by the leaf's `id`.
        steps: each leaf's stride along the row.
        sizes: of all loops.
    """

    def __init__(self, places: dict[int, str], steps: dict[int, int], sizes: Sequence[int]) -> None:
        self._places = places
        self._steps = steps
        self._sizes = list(sizes)
        self._count = self._sizes[-1] if self._sizes else 1
        self._axis = f"i{len(self._sizes) - 1}"

    def moved(self, to: NativeLeaf, value: Value, how: str) -> list[str]:
        """``to[i] = value[i]`` or ``to[i] += value[i]``.

        Raises:
            Mixed: the value is not an expression over floats that lie side by side.
        """
        if to.dtype != torch.float32 or self._steps[id(to)] != 1:
            raise Mixed
        return self._along(lambda part: self._moved(to, value, how, part))

    def _moved(self, to: NativeLeaf, value: Value, how: str, part: str) -> str:
        there = f"&{self._places[id(to)]}"
        before = f"{_called('load', part)}({there}) + " if how == "+=" else ""
        return f"{_called('store', part)}({there}, {before}{self._wide(value, part)});"

    def any(self, to: NativeLeaf, value: Value, how: str) -> list[str]:
        """Do what `moved` does, over ``n`` entries instead of the row's own number."""
        if to.dtype != torch.float32 or self._steps[id(to)] != 1 or self._count < _SHORTEST:
            raise Mixed
        whole, rest = (self._moved(to, value, how, part) for part in ("", _SOME))
        return [
            f"int {self._axis} = 0;",
            f"for (; {self._axis} + L <= n; {self._axis} += L) {{ {whole} }}",
            f"if ({self._axis} < n) {{ const Some some(n - {self._axis}); {rest} }}",
        ]

    def folded(self, to: NativeLeaf, place: str, value: Value, split: int, name: str) -> list[str]:
        """Fold everything from the axis ``split`` on into one entry; see `moved`."""
        if to.dtype != torch.float32:
            raise Mixed
        first, step, end = _FOLDS[name]

        def line(part: str) -> str:
            made = self._wide(value, part)
            return f"acc = {step.format(f'only{part}({made}, {first})' if part else made)};"

        around = loops(self._sizes[split:-1], split)
        return [f"V acc = wide({first});", *around, "{", *self._along(line), "}", f"{place} = {end}(acc);"]

    def stacked(self, to: NativeLeaf, place: str, value: Value, split: int, name: str) -> list[str]:
        """Fold the axes before ``split`` entry by entry of a row; see `moved`."""
        if to.dtype != torch.float32:
            raise Mixed
        first, step, _ = _FOLDS[name]

        def line(part: str) -> str:
            inner = [*loops(self._sizes[:split]), f"acc = {step.format(self._wide(value, part))};"]
            return " ".join([f"V acc = wide({first});", *inner, f"store{part}(&{place}, acc);"])

        return self._along(line)

    def _along(self, line: Callable[[str], str]) -> list[str]:
        """Handle whole vectors, then the rest."""
        n, axis = self._count, self._axis
        if n < _SHORTEST:
            raise Mixed
        return [
            f"for (int {axis} = 0; {axis} + L <= {n}; {axis} += L) {{ {line('')} }}",
            f"if constexpr ({n} % L > 0) {{ constexpr int {axis} = {n} - {n} % L; {line(f'_part<{n} % L>')} }}",
        ]

    def _wide(self, value: Value, part: str) -> str:
        """Return the expression as a vector."""
        text, wide = self._text(value, part)
        return text if wide else f"wide({text})"

    def _text(self, value: Value, part: str) -> tuple[str, bool]:
        """Return the expression, and whether it is a vector or the same for the whole row."""
        if isinstance(value, NativeLeaf):
            place = self._places[id(value)]
            if not self._steps[id(value)]:
                return place, False
            if value.dtype != torch.float32 or self._steps[id(value)] != 1 or not value.name:
                raise Mixed
            return f"{_called('load', part)}(&{place})", True
        parts = [self._text(some, part) for some in value.parts]
        texts = [text for text, _ in parts]
        if not any(wide for _, wide in parts):
            return value.text.format(*texts), False
        text = value.text if value.text.startswith("sampled<") else _TEXTS.get(value.text)
        if text is None:
            raise Mixed
        return text.format(*texts), True


def _called(verb: str, part: str) -> str:
    """Return the name of a function for a part of a vector: ``""`` for all lanes, ``"_part<T>"`` for ``T``, or those that `Some` holds."""
    return f"some.{verb}" if part == _SOME else f"{verb}{part}"


def loops(sizes: Sequence[int | str], first: int = 0) -> list[str]:
    """Return the heads of nested loops over ``i<first>``, ``i<first + 1>``, ..."""
    return [f"for (int i{d} = 0; i{d} < {n}; ++i{d})" for d, n in enumerate(sizes, first)]


def nest(sizes: Sequence[int | str], inner: list[str]) -> list[str]:
    """Return nested loops, of which the last may run in any order."""
    heads = loops(sizes)
    return [*heads[:-1], *(["#pragma omp simd", heads[-1]] if heads else []), "{", *inner, "}"]


_FOLDS = {
    "amax": ("-INF", "larger(acc, {0})", "largest"),
    "amin": ("INF", "smaller(acc, {0})", "smallest"),
    "sum": ("0.0f", "acc + {0}", "total"),
    "mean": ("0.0f", "acc + {0}", "total"),
}
