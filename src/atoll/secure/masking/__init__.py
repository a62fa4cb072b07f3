"""Masked sums: parties add masks that cancel, and a threshold of them opens what is left.

`SecureAggregation` is the reducer, and `OneShot` one that opens all masks at once. `plan` says how many neighbours and which threshold a cohort needs. Other protocols may build on `deal` and `reveal` (tasks that
share seeds and open them once), `Opening` (the server's half), `shares_of` and `opened` (Shamir's sharing of 32-byte seeds), and `rings` (the graph).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agreement import Agreement
    from .degree import MaskingPlan, plan
    from .one_shot import OneShot
    from .reducer import SecureAggregation
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "agreement": ("Agreement",),
            "degree": ("MaskingPlan", "plan"),
            "one_shot": ("OneShot",),
            "reducer": ("SecureAggregation",),
        },
    )

__all__ = ["Agreement", "MaskingPlan", "OneShot", "SecureAggregation", "plan"]
