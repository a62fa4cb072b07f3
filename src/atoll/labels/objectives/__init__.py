"""Losses that need few labels or none: pure functions of a model's outputs, a loss for each example unless they say otherwise."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adversarial import certainty, conditioned, domain_loss, reverse_gradient
    from .clusters import cluster, dispersion, gain_weights
    from .consistency import fixmatch, mean_teacher, moving_average, pseudo_label, pseudo_labels
    from .discrepancy import classifier_discrepancy
    from .distilled import check_predictions, era, mean_prediction
    from .mixing import guess, mixmatch_labelled, mixmatch_unlabelled, mixup, sharpen, soft_cross_entropy
    from .mixtures import Mixture, fit_mixture
    from .moments import coral, gaussian_mmd, linear_mmd
    from .positive import positive_unlabelled
    from .transport import projections, sliced_quantiles, transfer_bound, wasserstein
    from .virtual import vat, worst_change
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "adversarial": ("certainty", "conditioned", "domain_loss", "reverse_gradient"),
            "clusters": ("cluster", "dispersion", "gain_weights"),
            "consistency": ("fixmatch", "mean_teacher", "moving_average", "pseudo_label", "pseudo_labels"),
            "discrepancy": ("classifier_discrepancy",),
            "distilled": ("check_predictions", "era", "mean_prediction"),
            "mixing": ("guess", "mixmatch_labelled", "mixmatch_unlabelled", "mixup", "sharpen", "soft_cross_entropy"),
            "mixtures": ("Mixture", "fit_mixture"),
            "moments": ("coral", "gaussian_mmd", "linear_mmd"),
            "positive": ("positive_unlabelled",),
            "transport": ("projections", "sliced_quantiles", "transfer_bound", "wasserstein"),
            "virtual": ("vat", "worst_change"),
        },
    )

__all__ = [
    "Mixture",
    "certainty",
    "check_predictions",
    "classifier_discrepancy",
    "cluster",
    "conditioned",
    "coral",
    "dispersion",
    "domain_loss",
    "era",
    "fit_mixture",
    "fixmatch",
    "gain_weights",
    "gaussian_mmd",
    "guess",
    "linear_mmd",
    "mean_prediction",
    "mean_teacher",
    "mixmatch_labelled",
    "mixmatch_unlabelled",
    "mixup",
    "moving_average",
    "positive_unlabelled",
    "projections",
    "pseudo_label",
    "pseudo_labels",
    "reverse_gradient",
    "sharpen",
    "sliced_quantiles",
    "soft_cross_entropy",
    "transfer_bound",
    "vat",
    "wasserstein",
    "worst_change",
]
