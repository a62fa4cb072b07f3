"""Whether a reply becomes part of a sum: the same rules for single replies and for blocks.

The task's schema is checked when the task ends (``TaskSchema``). A server checks every reply of a site again (`atoll.runtime.network.checks`),
because the site may run another program.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra import tree as T
from ..algebra.tree import Tree
from ..errors import PolicyError

if TYPE_CHECKING:
    from ..algebra.aggregate import Aggregate, Total
    from ..requests.policy import Policy
    from ..requests.request import Request

__all__ = ["not_finite", "not_finite_total", "oversize", "refusal", "refused", "unfit", "unfit_total"]

_ARRAYS = (np.ndarray, np.generic)


def refusal(policy: Policy, request: Request) -> str:
    """Why a policy refuses a request; ``""`` if it does not."""
    try:
        policy.admit(request)
    except PolicyError as error:
        return refused(error)
    return ""


def refused(error: PolicyError) -> str:
    """The words for a policy's refusal, the same for single replies and blocks."""
    return f"refused by its policy: {type(error)(error.what, remedy=error.remedy)}"


def oversize(nbytes: int, largest: int | None) -> PolicyError | None:
    """The refusal of a reply of this size, or ``None``. ``largest=None`` sets no limit."""
    if largest is None or nbytes <= largest:
        return None
    what = f"a reply of {nbytes} bytes is larger than {largest}"
    return PolicyError(what, remedy="ask for less, or compress it")


def unfit(name: str, aggregate: Aggregate, *, encoded: bool = False) -> str:
    """Why an aggregate cannot be added up; ``""`` if it can.

    Args:
        name: its name.
        aggregate: the aggregate of one client.
        encoded: whether stages have encoded it.
    """
    return _why(name, not_finite(aggregate.value, aggregate.weight), encoded)


def unfit_total(name: str, total: Total) -> str:
    """Why an encoded total cannot be added up; ``""`` if it can."""
    return _why(name, not_finite_total(total), True)


def _why(name: str, leaf: str, encoded: bool) -> str:
    if not leaf:
        return ""
    return f"{_place(name, leaf)} is not finite{' once encoded' if encoded else ''}"


def _place(name: str, leaf: str) -> str:
    """A leaf of an aggregate in words: its name and path."""
    return name if leaf == "." else f"{name}/{leaf}"


def not_finite(value: Tree, weight: Any) -> str:
    """The path of the first non-finite leaf, ``"."`` for a bare leaf or the weight, ``""`` if all are finite."""
    if not (math.isfinite(weight) if type(weight) is float else np.isfinite(np.asarray(weight, np.float64)).all()):
        return "."
    for path, leaf in T.items(value):
        if isinstance(leaf, _ARRAYS):
            if leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
                return path or "."
        elif isinstance(leaf, float):
            if not math.isfinite(leaf):
                return path or "."
        elif type(leaf).__module__ == "torch" and leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            return path or "."
    return ""


def not_finite_total(total: Total) -> str:
    """The path of the first non-finite leaf of a total, as ``not_finite`` gives it."""
    if total.kind == "parts":
        return next((bad for part in total.value if (bad := not_finite(part.value, part.weight))), "")
    return not_finite(total.value, total.weight)
