"""Which of a function's two arguments is the model's output, and which the label: read from their names.

Losses of PyTorch are called with outputs and then targets, metrics of scikit-learn with labels and then predictions; swapped, most of them give a plausible number.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["ArgumentOrder", "read_order"]

_LABELS = frozenset(
    [
        "true",
        "truth",
        "label",
        "labels",
        "target",
        "targets",
        "tgt",
        "tgts",
        "trg",
        "gt",
        "gold",
        "golden",
        "actual",
        "actuals",
        "observed",
        "observation",
        "observations",
        "obs",
        "reference",
        "references",
        "ref",
        "refs",
        "expected",
        "groundtruth",
        "real",
        "reality",
        "ytrue",
    ]
)
_OUTPUTS = frozenset(
    [
        "pred",
        "preds",
        "predicted",
        "prediction",
        "predictions",
        "predict",
        "score",
        "scores",
        "output",
        "outputs",
        "out",
        "outs",
        "logit",
        "logits",
        "prob",
        "probs",
        "proba",
        "probas",
        "probability",
        "probabilities",
        "hat",
        "simulated",
        "simulation",
        "simulations",
        "sim",
        "sims",
        "estimate",
        "estimates",
        "estimated",
        "est",
        "forecast",
        "forecasts",
        "forecasted",
        "fitted",
        "modelled",
        "modeled",
        "hypothesis",
        "hypotheses",
        "hyp",
        "guess",
        "guesses",
        "input",
        "inputs",
        "decision",
        "ypred",
        "yscore",
        "yprob",
        "yhat",
    ]
)
"""Words in the names of arguments."""
_LETTERS = {"y": "labels", "t": "labels", "l": "labels", "p": "outputs", "o": "outputs", "s": "outputs"}
"""Letters that mean something beside one another alone."""
_OTHER = {"labels": "outputs", "outputs": "labels"}


@dataclass(frozen=True)
class ArgumentOrder:
    """How to call a function of outputs and labels.

    Attributes:
        names: the two parameters, as far as they are known.
        labels_first: whether the labels come first.
        by_name: whether both must be passed by name.
        known: whether the names tell.
    """

    names: tuple[str, ...]
    labels_first: bool = False
    by_name: bool = False
    known: bool = False

    def call(self, function: Callable[..., Any], outputs: Any, labels: Any) -> Any:
        """Call the function."""
        given = (labels, outputs) if self.labels_first else (outputs, labels)
        return function(**dict(zip(self.names, given, strict=True))) if self.by_name else function(*given)


def read_order(function: Any) -> ArgumentOrder:
    """Return the order of a function's two arguments: outputs first, unless their names say otherwise."""
    try:
        found = list(inspect.signature(getattr(function, "forward", function)).parameters.values())
    except (TypeError, ValueError):
        return ArgumentOrder(())
    names = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:2]
    by_name = not names and not any(p.kind is p.VAR_POSITIONAL for p in found)
    if by_name:
        names = [p.name for p in found if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(names) != 2:
        return ArgumentOrder(tuple(names))
    one, other = (_kind(name) for name in names)
    if not one and not other and {name.lower() for name in names} <= _LETTERS.keys():
        one, other = (_LETTERS[name.lower()] for name in names)
        if one == other == "labels":  # t and y are a target and its y; l is one beside anything
            one, other = ("outputs" if name.lower() == "y" else "labels" for name in names)
    else:  # what stands beside labels is outputs, and the other way round; one letter says nothing against a word
        one, other = one or _OTHER.get(other, ""), other or _OTHER.get(one, "")
    kinds = {one, other}
    known = kinds == {"labels", "outputs"}
    return ArgumentOrder(tuple(names), labels_first=known and one == "labels", by_name=by_name, known=known)


def _kind(name: str) -> str:
    """Return what a name says: ``labels``, ``outputs``, or nothing. ``y`` is part of names of both."""
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    found = [kind for kind, known in (("labels", _LABELS), ("outputs", _OUTPUTS)) if words & known]
    return found[0] if len(found) == 1 else ""
