"""Measures of what was learned with few labels or none: pure functions of features and scores, and metrics for every round."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .attacked import accuracy_under_attack
    from .fairness import fairness_gap, group_measures
    from .finetune import FineTuned, fine_tune, labelled_share
    from .intervals import PairedGain, paired_gain
    from .neighbours import NeighbourAccuracy, nearest_classes, neighbour_accuracy
    from .probe import LinearProbe, ProbeAccuracy, fit_probe
    from .pseudo import PseudoLabels, coverage, purity, sure
    from .targets import accuracy, balanced, macro_f1
    from .unlabelled import Confidence, agreement, information, mean_entropy, rank_correlation, rank_without_labels
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "attacked": ("accuracy_under_attack",),
            "fairness": ("fairness_gap", "group_measures"),
            "finetune": ("FineTuned", "fine_tune", "labelled_share"),
            "intervals": ("PairedGain", "paired_gain"),
            "neighbours": ("NeighbourAccuracy", "nearest_classes", "neighbour_accuracy"),
            "probe": ("LinearProbe", "ProbeAccuracy", "fit_probe"),
            "pseudo": ("PseudoLabels", "coverage", "purity", "sure"),
            "targets": ("accuracy", "balanced", "macro_f1"),
            "unlabelled": (
                "Confidence",
                "agreement",
                "information",
                "mean_entropy",
                "rank_correlation",
                "rank_without_labels",
            ),
        },
    )

__all__ = [
    "Confidence",
    "FineTuned",
    "LinearProbe",
    "NeighbourAccuracy",
    "PairedGain",
    "ProbeAccuracy",
    "PseudoLabels",
    "accuracy",
    "accuracy_under_attack",
    "agreement",
    "balanced",
    "coverage",
    "fairness_gap",
    "fine_tune",
    "fit_probe",
    "group_measures",
    "information",
    "labelled_share",
    "macro_f1",
    "mean_entropy",
    "nearest_classes",
    "neighbour_accuracy",
    "paired_gain",
    "purity",
    "rank_correlation",
    "rank_without_labels",
    "sure",
]
