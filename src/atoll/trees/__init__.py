"""Decision trees over all parties: boosted on sums of histograms, or grown by each party and bagged."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .job import Trees
    from .model_files import model_file
    from .tree import Ensemble, Tree
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__, {"job": ("Trees",), "tree": ("Ensemble", "Tree"), "model_files": ("model_file",)}
    )

__all__ = ["Ensemble", "Tree", "Trees", "model_file"]
