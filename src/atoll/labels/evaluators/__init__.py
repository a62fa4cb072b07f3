"""Measures of what was learned with few labels or none: pure functions of features and scores, and metrics for every round."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .gains import (
        PairedGain,
        accuracy,
        accuracy_under_attack,
        balanced,
        fairness_gap,
        group_measures,
        macro_f1,
        paired_gain,
    )
    from .neighbours import NeighbourAccuracy, nearest_classes, neighbour_accuracy
    from .probe import FineTuned, LinearProbe, ProbeAccuracy, fine_tune, fit_probe, labelled_share
    from .unlabelled import (
        Confidence,
        PseudoLabels,
        agreement,
        coverage,
        information,
        mean_entropy,
        purity,
        rank_correlation,
        rank_without_labels,
        sure,
    )
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "gains": (
                "PairedGain",
                "accuracy",
                "accuracy_under_attack",
                "balanced",
                "fairness_gap",
                "group_measures",
                "macro_f1",
                "paired_gain",
            ),
            "neighbours": (
                "NeighbourAccuracy",
                "nearest_classes",
                "neighbour_accuracy",
            ),
            "probe": (
                "FineTuned",
                "LinearProbe",
                "ProbeAccuracy",
                "fine_tune",
                "fit_probe",
                "labelled_share",
            ),
            "unlabelled": (
                "Confidence",
                "PseudoLabels",
                "agreement",
                "coverage",
                "information",
                "mean_entropy",
                "purity",
                "rank_correlation",
                "rank_without_labels",
                "sure",
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
