"""Losses that need few labels or none: pure functions of a model's outputs, a loss for each example unless they say otherwise."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adversarial import certainty, conditioned, domain_loss, reverse_gradient
    from .clusters import cluster, dispersion, gain_weights
    from .discrepancy import classifier_discrepancy
    from .mixtures import Mixture, fit_mixture
    from .moments import coral, gaussian_mmd, linear_mmd
    from .transport import projections, sliced_quantiles, transfer_bound, wasserstein
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "adversarial": ("certainty", "conditioned", "domain_loss", "reverse_gradient"),
            "clusters": ("cluster", "dispersion", "gain_weights"),
            "discrepancy": ("classifier_discrepancy",),
            "mixtures": ("Mixture", "fit_mixture"),
            "moments": ("coral", "gaussian_mmd", "linear_mmd"),
            "transport": ("projections", "sliced_quantiles", "transfer_bound", "wasserstein"),
        },
    )

__all__ = [
    "Mixture",
    "certainty",
    "classifier_discrepancy",
    "cluster",
    "conditioned",
    "coral",
    "dispersion",
    "domain_loss",
    "fit_mixture",
    "gain_weights",
    "gaussian_mmd",
    "linear_mmd",
    "projections",
    "reverse_gradient",
    "sliced_quantiles",
    "transfer_bound",
    "wasserstein",
]
