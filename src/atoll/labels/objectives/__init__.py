"""Losses that need few labels or none: pure functions of a model's outputs, a loss for each example unless they say otherwise."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adversarial import certainty, conditioned, domain_loss, reverse_gradient
    from .assignments import assignment_loss, balanced_centroids, refined_centroids, sinkhorn
    from .attacked import attacked_rows
    from .clusters import cluster, dispersion, gain_weights
    from .consistency import check_threshold, fixmatch, mean_teacher, moving_average, pseudo_label, pseudo_labels
    from .contrastive import enqueue, info_nce, nt_xent
    from .discrepancy import classifier_discrepancy
    from .distilled import check_predictions, era, mean_prediction
    from .fedx import jensen_shannon, relational, relations
    from .masked import hidden_pieces, masked_error, masked_tokens, pieces_of, spread_pieces
    from .mixing import guess, mixmatch_labelled, mixmatch_unlabelled, mixup, sharpen, soft_cross_entropy
    from .mixtures import Mixture, fit_mixture
    from .moments import coral, gaussian_mmd, linear_mmd
    from .positive import check_priors, positive_unlabelled
    from .predictive import byol, feature_spread, simsiam, standardised
    from .rotation import predict_rotation, quarter_turns
    from .thresholds import free_thresholds
    from .transport import projections, sliced_quantiles, transfer_bound, wasserstein
    from .variational import beta_vae, code_divergence, reconstruction_error, sampled_code
    from .virtual import vat, worst_change
    from .wrong.forward import forward_corrected, label_triples
    from .wrong.transitions import check_transition, estimate_transition
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "adversarial": ("certainty", "conditioned", "domain_loss", "reverse_gradient"),
            "assignments": ("assignment_loss", "balanced_centroids", "refined_centroids", "sinkhorn"),
            "attacked": ("attacked_rows",),
            "clusters": ("cluster", "dispersion", "gain_weights"),
            "consistency": (
                "check_threshold",
                "fixmatch",
                "mean_teacher",
                "moving_average",
                "pseudo_label",
                "pseudo_labels",
            ),
            "contrastive": ("enqueue", "info_nce", "nt_xent"),
            "discrepancy": ("classifier_discrepancy",),
            "distilled": ("check_predictions", "era", "mean_prediction"),
            "fedx": ("jensen_shannon", "relational", "relations"),
            "masked": ("hidden_pieces", "masked_error", "masked_tokens", "pieces_of", "spread_pieces"),
            "mixing": ("guess", "mixmatch_labelled", "mixmatch_unlabelled", "mixup", "sharpen", "soft_cross_entropy"),
            "mixtures": ("Mixture", "fit_mixture"),
            "moments": ("coral", "gaussian_mmd", "linear_mmd"),
            "positive": ("check_priors", "positive_unlabelled"),
            "predictive": ("byol", "feature_spread", "simsiam", "standardised"),
            "rotation": ("predict_rotation", "quarter_turns"),
            "thresholds": ("free_thresholds",),
            "transport": ("projections", "sliced_quantiles", "transfer_bound", "wasserstein"),
            "variational": ("beta_vae", "code_divergence", "reconstruction_error", "sampled_code"),
            "virtual": ("vat", "worst_change"),
            "wrong.forward": ("forward_corrected", "label_triples"),
            "wrong.transitions": ("check_transition", "estimate_transition"),
        },
    )

__all__ = [
    "Mixture",
    "assignment_loss",
    "attacked_rows",
    "balanced_centroids",
    "beta_vae",
    "byol",
    "certainty",
    "check_predictions",
    "check_priors",
    "check_threshold",
    "check_transition",
    "classifier_discrepancy",
    "cluster",
    "code_divergence",
    "conditioned",
    "coral",
    "dispersion",
    "domain_loss",
    "enqueue",
    "era",
    "estimate_transition",
    "feature_spread",
    "fit_mixture",
    "fixmatch",
    "forward_corrected",
    "free_thresholds",
    "gain_weights",
    "gaussian_mmd",
    "guess",
    "hidden_pieces",
    "info_nce",
    "jensen_shannon",
    "label_triples",
    "linear_mmd",
    "masked_error",
    "masked_tokens",
    "mean_prediction",
    "mean_teacher",
    "mixmatch_labelled",
    "mixmatch_unlabelled",
    "mixup",
    "moving_average",
    "nt_xent",
    "pieces_of",
    "positive_unlabelled",
    "predict_rotation",
    "projections",
    "pseudo_label",
    "pseudo_labels",
    "quarter_turns",
    "reconstruction_error",
    "refined_centroids",
    "relational",
    "relations",
    "reverse_gradient",
    "sampled_code",
    "sharpen",
    "simsiam",
    "sinkhorn",
    "sliced_quantiles",
    "soft_cross_entropy",
    "spread_pieces",
    "standardised",
    "transfer_bound",
    "vat",
    "wasserstein",
    "worst_change",
]
