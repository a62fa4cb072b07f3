"""Which model of truth? The one that foretells reports best which it has not seen: what ``atoll truth discover --method auto`` plays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.core.errors import CompositionError, ConfigError
from atoll.truth.choosing import hold_out, score_held_out
from atoll.truth.models.model import fit_reports

if TYPE_CHECKING:
    from atoll.truth import Reports, TaskLayout, Truth, TruthModel, TruthResult

__all__ = ["ModelChoice", "choose_model", "list_candidates", "score_model"]


@dataclass(frozen=True)
class ModelChoice:
    """Which model was chosen, and why.

    Attributes:
        chosen: its name. Of models with the same score, the first.
        scores: name -> the mean log-probability of the reports that were held out, by sums that showed nobody more.
        plain: the same with all reports in one place.
        held: how many reports were held out.
    """

    chosen: str
    scores: Mapping[str, float]
    plain: Mapping[str, float]
    held: int


def list_candidates(values: str, iterations: int | None = None) -> dict[str, TruthModel]:
    """Return the models that are compared for a kind of reports, the simplest first.

    Args:
        values: ``"classes"``, ``"claims"`` or ``"numbers"``.
        iterations: most iterations of each; by default each model's own.
    """
    from atoll.truth import (  # fmt: skip
        CRH,
        GLAD,
        MACE,
        TDH,
        DawidSkene,
        Logistic,
        MajorityVote,
        MeanReport,
        MedianReport,
        OneCoin,
        WeightedSum,
    )

    more = {} if iterations is None else {"iterations": iterations}
    kinds: dict[str, dict[str, type[TruthModel]]] = {
        "classes": {"majority-vote": MajorityVote, "weighted-sum": WeightedSum, "logistic": Logistic, "one-coin": OneCoin, "dawid-skene": DawidSkene, "glad": GLAD, "mace": MACE},
        "claims": {"majority-vote": MajorityVote, "weighted-sum": WeightedSum, "one-coin": OneCoin, "tdh": TDH},
        "numbers": {"mean-report": MeanReport, "median-report": MedianReport, "crh": CRH},
    }  # fmt: skip
    baselines = {"majority-vote", "mean-report", "median-report"}
    return {name: kind(**({} if name in baselines else more)) for name, kind in kinds[values].items()}


def score_model(model: TruthModel, reports: Reports, layout: TaskLayout, part: float) -> float:
    """Return the mean log-probability of held-out reports, with all reports in one place.

    Args:
        model: the model.
        reports: all reports.
        layout: tasks and labels.
        part: the part that is held out.
    """
    known, held = hold_out(layout.code(reports), part)
    fit = fit_reports(model, known)
    sums = score_held_out(model, fit.state, known, held, fit.broadcast)
    return float(sums["score"][0] / sums["held"][0])


def choose_model(
    models: Mapping[str, TruthModel], job: Truth, parts: Mapping[str, Reports], *, part: float = 0.2, seed: int = 0
) -> ModelChoice:
    """Play a campaign by each model without some of the reports, and choose the model that foretells these best.

    Args:
        models: name -> model.
        job: the settings of the campaigns; its model is not used.
        parts: the reports of each party.
        part: the part of the reports that is held out.
        seed: decides who is lost.

    Raises:
        ConfigError: no model is given, or so few reports that none is held out.
    """
    from atoll.simulation import simulate
    from atoll.truth import pool_sites

    if not models:
        raise ConfigError("no models to choose among", where="choose_model", remedy="give a name and a model, or more")
    whole, scores, plain, held = pool_sites(parts), dict[str, float](), dict[str, float](), 0
    for name, model in models.items():
        try:
            asked = replace(job, model=model, held_out=part)
            result: TruthResult = simulate(asked, parts, engine="inline", seed=seed, progress=False).outcome
        except CompositionError:  # it reads other reports
            continue
        if result.score is None:
            raise ConfigError(f"a part of {part} of {len(whole)} reports is none", where="choose_model", remedy="hold out more of them, or name a model")  # fmt: skip
        scores[name], held = result.score, result.held
        plain[name] = score_model(model, whole, result.fit.layout, part)
    if not scores:
        raise ConfigError(f"none of {', '.join(models)} reads these reports", where="choose_model", remedy="name a model for them")  # fmt: skip
    return ModelChoice(max(scores, key=scores.__getitem__), scores, plain, held)
