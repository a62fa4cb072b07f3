"""The labels that requests have used, in little memory: numbers that follow one another are kept as ranges."""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["Labels"]


class Labels:
    """A set of labels. ``add`` says whether a label is new.

    The first number of a label, ``12`` in ``step/@12`` or ``step/@12/left``, joins the range of its neighbours; a million rounds in order are one range.
    """

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
        self._others: set[str] = set()

    def add(self, label: str) -> bool:
        """Add a label; return whether it is new."""
        before, _, after = label.partition("@")
        number, _, rest = after.partition("/")
        # Text that a number is not written as, such as "01", is a label of its own. So is "1/" beside "1".
        if not number.isdecimal() or str(int(number)) != number or after == number + "/":
            new = label not in self._others
            self._others.add(label)
            return new
        return _add(*self._ranges.setdefault((before, rest), ([], [])), int(number))


def _add(starts: list[int], ends: list[int], number: int) -> bool:
    """Add a number to ranges, sorted, from starts to before ends; return whether it is new."""
    at = bisect_right(starts, number)
    if at and number < ends[at - 1]:
        return False
    joins_before, joins_after = bool(at) and ends[at - 1] == number, at < len(starts) and starts[at] == number + 1
    if joins_before and joins_after:
        ends[at - 1] = ends[at]
        del starts[at], ends[at]
    elif joins_before:
        ends[at - 1] = number + 1
    elif joins_after:
        starts[at] = number
    else:
        starts.insert(at, number)
        ends.insert(at, number + 1)
    return True
