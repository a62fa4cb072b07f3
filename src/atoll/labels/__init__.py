"""Learning without full labels: rows at clients, labels few, elsewhere or wrong.

Four nouns. A *view* is what an augmentation makes of a row and a key (`atoll.labels.views`). An *objective* is a loss of one example, from outputs on its
views (`atoll.labels.objectives`). A *stream* is a named part of the model with a rule for how it learns and travels (`atoll.labels.streams`). A *method* is
objectives, streams and a fold around any algorithm: ``Training(model=net, algorithm=FixMatch(tau=0.95))``, or ``FixMatch(base=FedProx(mu=0.1))``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .methods.base import Method
    from .methods.dsfl import DSFL
    from .methods.fixmatch import FixMatch
    from .methods.supervised import Supervised
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "methods.base": ("Method",),
            "methods.dsfl": ("DSFL",),
            "methods.fixmatch": ("FixMatch",),
            "methods.supervised": ("Supervised",),
        },
    )

__all__ = [
    "DSFL",
    "FixMatch",
    "Method",
    "Supervised",
]
