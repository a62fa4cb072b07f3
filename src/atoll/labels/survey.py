"""The survey's 21 methods: setting, what a client keeps, bits of a round, and what is exposed besides parameters.

Source: the survey "Federated learning without full labels", Tables 15 to 17, and the mechanisms of the methods. ``d`` is the number of parameters that
travel, as floats of 32 bits; formulas are for one client and one round.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

__all__ = ["SURVEY", "SurveyMethod", "survey_rows"]


@dataclass(frozen=True)
class SurveyMethod:
    """One method of the survey.

    Attributes:
        name: as the survey has it.
        family: ``"semi"``, ``"self"`` or ``"transfer"``.
        setting: who has which labels.
        isolates: how it deals with labels that lie elsewhere.
        state: what a client keeps between rounds; ``"none"``: clients need not return.
        up: bits that a client sends.
        down: bits that a client receives.
        exposes: what leaves a client besides parameters of the model, or what it sees of other clients.
        part: the class, function or module of ``atoll.labels`` that has it, or its address elsewhere.
        later: what it comes with, if it is not here.
    """

    name: str
    family: str
    setting: str
    isolates: str
    state: str
    up: str
    down: str
    exposes: str
    part: str = ""
    later: str = ""


_AT_CLIENTS, _AT_SERVER, _NONE = "labels at clients", "labels at the server", "no labels"
_NOTHING = "nothing"
_ADDED = "as the method inside"

SURVEY: tuple[SurveyMethod, ...] = (
    SurveyMethod(
        "RSCFed", "semi", _AT_CLIENTS, "teacher and student, sub-consensus of random groups", "moving average of the model", "32 d", "32 d",
        "single models, to the server", "RSCFed",
    ),
    SurveyMethod(
        "FedSSL", "semi", _AT_CLIENTS, "pseudo-labels, and rows of a global generator", "none", "32 (d + g), g: the generator", "32 (d + g)",
        "rows that the generator makes, under differential privacy", "FedSSL",
    ),
    SurveyMethod(
        "FedMatch", "semi", f"{_AT_CLIENTS}, or at the server", "disjoint parts for labels and for unlabelled rows", "both parts",
        "(32 + 32) nnz(change)", "(32 + 32) nnz(change) + 32 H d, H: helper models", "models of other clients, to clients", "FedMatch",
    ),
    SurveyMethod(
        "FedPU", "semi", "labels of some classes at each client", "risk of positive and unlabelled rows", "none", "32 d", "32 d",
        "nothing; class priors stay local", "FedPU",
    ),
    SurveyMethod(
        "AdaFedSemi", "semi", "labels at clients, unlabelled rows at the server", "pseudo-labels at the server, threshold by a bandit", "none",
        "32 d, of a share of the clients", "32 d", "nothing; the server has the unlabelled rows", "AdaFedSemi",
    ),
    SurveyMethod(
        "DS-FL", "semi", f"{_AT_CLIENTS}, public unlabelled rows", "predictions of all clients, sharpened", "the model", "32 B C, B public rows, C classes",
        "32 B C", "predictions on public rows, to the server", "DSFL",
    ),
    SurveyMethod(
        "SemiFL", "semi", _AT_SERVER, "alternate training, the global model's pseudo-labels", "none", "32 d", "32 d", _NOTHING, "SemiFL"
    ),
    SurveyMethod(
        "FedCA", "self", _NONE, "contrast with a dictionary, alignment on public rows", "none", "32 (d + q D), q features of size D", "32 (d + q D)",
        "features of rows, to the server and to clients", "FedCA",
    ),
    SurveyMethod("SSFL", "self", _NONE, "SimSiam, personal models", "personal model", "32 d", "32 d", _NOTHING, "SSFL"),
    SurveyMethod(
        "FedU", "self", _NONE, "BYOL, predictor by divergence", "target, predictor, divergence", "32 d", "32 d", _NOTHING, "FedU"
    ),
    SurveyMethod(
        "FedEMA", "self", _NONE, "BYOL, moving average of the client's model", "target, online model, scale", "32 d", "32 d", _NOTHING, "FedEMA"
    ),
    SurveyMethod(
        "Orchestra", "self", _NONE, "clusters of clusters, rotations", "none", "32 (d + K D), K centroids of size D", "32 (d + G D), G global ones",
        "centroids of a client's features, to the server", "Orchestra",
    ),
    SurveyMethod("FedX", "self", _NONE, "local and global relations, around any method", _ADDED, _ADDED, _ADDED, _NOTHING, "FedX"),
    SurveyMethod(
        "DualAdapt", "transfer", "one labelled source, several targets", "discrepancy of two classifiers, a mixture of Gaussians", "none",
        "32 (d + m), m mixture", "32 (d + m)", "sums of features by class, and of their squares", "DualAdapt",
    ),
    SurveyMethod(
        "FRuDA", "transfer", "one labelled source, targets that arrive over time", "adversarial, with the best collaborator", "none",
        "32 (d + k) every p steps, k discriminator", "32 (2 d + k) every p steps", "quantiles of projected features, to choose a collaborator", "FRuDA",
    ),
    SurveyMethod(
        "FADA", "transfer", "labelled sources, one target", "adversarial, on exchanged features", "a random number", "32 (d + n D), n rows with D features",
        "32 (d + s k), s discriminators k; to the target also s models", "features of rows: needs a site's consent", "FADA",
    ),
    SurveyMethod(
        "FADE", "transfer", "labelled sources, one target", "adversarial, discriminators averaged", "none", "32 (d + k), k discriminator", "32 (d + k)",
        _NOTHING, "FADE",
    ),
    SurveyMethod(
        "EfficientFDA", "transfer", "labelled sources, one target", "distance of means, summed under encryption", "none", "ciphertexts of D sums, and of 32 d bits",
        "32 (d + D)", "the gap between the domains' mean features, as a sum of all", "EfficientFDA",
    ),
    SurveyMethod(
        "PrADA", "transfer", "part of the target's labels, one labelled source, features at a third party", "adversarial, by groups of features", "keys",
        "ciphertexts", "ciphertexts", "sizes", "atoll.vertical.PrADA",
    ),
    SurveyMethod(
        "SFTL", "transfer", "one party with labels, overlapping users", "alignment of shared users", "keys", "ciphertexts or shares",
        "ciphertexts or shares", "sizes, and which users are shared", "atoll.vertical.SFTL",
    ),
    SurveyMethod(
        "SFHTL", "transfer", "one source, several targets, other features", "propagation of labels, split learning", "encoder of the party",
        "32 n D, cut-layer activations", "32 n D, their gradients", "activations of rows", "atoll.vertical.SFHTL",
    ),
)  # fmt: skip
"""All 21, in the survey's order."""


def survey_rows() -> list[dict[str, Any]]:
    """Return the table as rows of text; ``here`` says which methods ``atoll.labels`` has."""
    room = importlib.import_module(__package__)
    made = []
    for one in SURVEY:
        here = one.part.startswith("atoll.") or (bool(one.part) and one.part in room.__all__)
        made.append(
            {
                "name": one.name,
                "family": one.family,
                "setting": one.setting,
                "isolates": one.isolates,
                "state": one.state,
                "bits_up": one.up,
                "bits_down": one.down,
                "exposes": one.exposes,
                "here": here,
                "class": one.part if one.part.startswith("atoll.") else f"atoll.labels.{one.part}" if here else "",
                "to_come": "" if here else one.later or "in this room",
            }
        )
    return made
