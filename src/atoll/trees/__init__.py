"""Decision trees over all parties: boosted on sums of histograms, or grown by each party and bagged."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .job import Trees
    from .tree import Ensemble, Tree
    from .xgboost_file import model_file
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__, {"job": ("Trees",), "tree": ("Ensemble", "Tree"), "xgboost_file": ("model_file",)}
    )

__all__ = ["Ensemble", "Tree", "Trees", "model_file"]
