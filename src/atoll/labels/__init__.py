"""Learning without full labels: rows at clients, labels few, elsewhere or wrong.

Four nouns. A *view* is what an augmentation makes of a row and a key (`atoll.labels.views`). An *objective* is a loss of one example, from outputs on its
views (`atoll.labels.objectives`). A *stream* is a named part of the model with a rule for how it learns and travels (`atoll.labels.streams`). A *method* is
objectives, streams and a fold around any algorithm: ``Training(model=net, algorithm=FixMatch(tau=0.95))``, or ``FixMatch(base=FedProx(mu=0.1))``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .methods.base import Method
    from .methods.dsfl import DSFL
    from .methods.fedmatch import FedMatch
    from .methods.fedpu import FedPU
    from .methods.fedssl import FedSSL
    from .methods.fixmatch import FixMatch
    from .methods.generator import Generator, RowDecoder
    from .methods.rscfed import RSCFed
    from .methods.supervised import Supervised
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "methods.base": ("Method",),
            "methods.dsfl": ("DSFL",),
            "methods.fedmatch": ("FedMatch",),
            "methods.fedpu": ("FedPU",),
            "methods.fedssl": ("FedSSL",),
            "methods.fixmatch": ("FixMatch",),
            "methods.generator": ("RowDecoder", "Generator"),
            "methods.rscfed": ("RSCFed",),
            "methods.supervised": ("Supervised",),
        },
    )

__all__ = [
    "DSFL",
    "RowDecoder",
    "FedMatch",
    "FedPU",
    "FedSSL",
    "FixMatch",
    "Generator",
    "Method",
    "RSCFed",
    "Supervised",
]
