"""Fits and trees of several sites' files, compared with each site alone and with all rows in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import AtollError, ConfigError, DataError, MissingExtraError, nearest

from .pooled import fit_pooled

if TYPE_CHECKING:
    from atoll.core.federation.reducer import Reducer
    from atoll.data import Dataset, DataTable, Islands
    from atoll.fitting import FitMethod, FittedModel
    from atoll.trees import Ensemble

__all__ = ["METHODS", "compare_fits", "compare_trees", "list_compared", "method_of"]


def list_compared(found: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, list[float | None]]]]:
    """Return the measures of a comparison, and their values for each site alone, the federation, and all rows in one place; ``None`` where there is none."""
    # Of several classes, trees have an accuracy and the area under the curve.
    measures = {found["measure"]: found, **({"auc": found["auc"]} if "auc" in found else {})}
    pooled = f"pooled, by {found['pooled_by']}" if found.get("pooled_by") else "pooled"
    rows = [(f"{name} alone", [one["alone"][name] for one in measures.values()]) for name in found["alone"]]
    rows += [("federated", [one["federated"] for one in measures.values()])]
    return [*measures], [*rows, (pooled, [one["pooled"] for one in measures.values()])]


def _write_page(result: Any, found: Mapping[str, Any], path: Path) -> None:
    """Write a federation's report, with the comparison."""
    from atoll.report import write_report

    head, rows = list_compared(found)
    shown = [[name, *("-" if value is None else f"{value:.6g}" for value in values)] for name, values in rows]
    table = {"head": ["trained on", *head], "rows": shown}
    write_report(result, path, more=[{"title": "Alone, federated, pooled", "tables": [table]}])


# A model fitted over a federation beside those of each site alone and of all rows in one place: what ``atoll fit`` shows.


METHODS = {
    "bayes": "NaiveBayes", "cox": "Cox", "glm": "GLM", "gmm": "GaussianMixture", "km": "KaplanMeier", "kmeans": "KMeans", "pca": "PCA", "ridge": "Ridge",
    "svd": "TruncatedSVD", "svm": "SVM",
}  # fmt: skip
"""What people type -> the method's class."""
_LINES, _CLASSES = "ridge, which has no penalty unless you give one (--set alpha=1)", "glm"
_OTHER_NAMES = {
    "ols": _LINES, "linear": _LINES, "lm": _LINES, "gaussian": _LINES, "regression": _LINES, "logistic": _CLASSES, "logit": _CLASSES, "binomial": _CLASSES, "multinomial": _CLASSES,
    "poisson": "glm --set family=poisson", "kaplan-meier": "km", "kaplanmeier": "km", "survival": "km, or cox", "coxph": "cox", "phreg": "cox", "k-means": "kmeans", "naivebayes": "bayes",
    "nb": "bayes", "mixture": "gmm", "svc": "svm",
}  # fmt: skip
"""What people call a method elsewhere -> what to type."""


def method_of(name: str, settings: Mapping[str, Any]) -> FitMethod:
    """A method by the name that people type.

    Raises:
        ConfigError: there is no such method, or it has no such setting.
    """
    from atoll.fitting import methods

    if name not in METHODS:
        known = f"use one of {', '.join(METHODS)}"
        remedy = f"use {_OTHER_NAMES[name.lower()]}" if name.lower() in _OTHER_NAMES else known
        raise ConfigError(f"no method {name!r}.{nearest(name, METHODS)}", where="atoll fit", remedy=remedy)
    kind: type[FitMethod] = getattr(methods, METHODS[name])
    return kind(**settings)


def compare_fits(
    tables: Mapping[str, DataTable],
    test: DataTable | None,
    model: FitMethod,
    settings: Mapping[str, Any],
    *,
    secure: bool,
    seed: int,
    page: Path | None = None,
) -> tuple[dict[str, Any], FittedModel]:
    """Fit over all sites, for each site alone, and over all rows in one place.

    All rows in one place are fitted by an independent library, see `atoll.study.pooled`: clusters and mixtures begin there where the federation began.

    Args:
        tables: one a site.
        test: rows to score on; by default those of all sites.
        model: the method.
        settings: of `atoll.fitting.Fit`.
        secure: whether the server sees sums alone.
        seed: of draws.
        page: file for a report of the federation's fit, with a picture and the comparison.

    Returns:
        ``measure``, its value ``alone`` by site (``None`` where a site cannot fit alone), ``federated``, ``pooled`` by a library, whose name is ``pooled_by``; the largest ``difference`` of
        the federation from it, see `PooledFit`, and its ``pooled_coefficients``. Where the library is not installed or cannot fit such rows, these are ``None``, and ``pooled_note`` says why. What the
        result ``told``; short ``params``; the result's ``notices``, if there are any. And the federation's model.
    """
    from atoll.data import DataTable
    from atoll.data.units import name_units_of_test
    from atoll.fitting.rows import require_known_labels
    from atoll.runs.config import job_class
    from atoll.secure.masking import SecureAggregation
    from atoll.simulation import simulate

    results: list[Any] = []

    def fit_model(data: Mapping[str, DataTable], method: FitMethod, **more: Any) -> FittedModel:
        job = job_class("fit")(**{**settings, "model": method, **more})
        result = simulate(job, data, engine="inline", seed=seed, progress=False)
        results.append(result)
        made: FittedModel = result.outcome
        return made

    words = [*(settings.get("categories") or ()), *([settings["label"]] if model.target == "class" else [])]
    tables = {name: _count_truths(table, model, words) for name, table in tables.items()}
    whole = DataTable.stacked(list(tables.values()), name="all")
    rows = whole if test is None else test
    federated = fit_model(tables, model, **({"reducer": SecureAggregation()} if secure else {}))
    if test is not None:
        require_known_labels(test, federated.layout, f"table {test.name!r}")
    plain = _without_noise(model)
    reasons: dict[str, str] = {}
    alone = {
        name: _score_alone(lambda table=table: fit_model({"one": table}, plain, min_count=1).score(rows), name, reasons)
        for name, table in tables.items()
    }
    told = [
        line for line in results[0].notices if line not in federated.told.get("notes", ())
    ]  # these are shown below the coefficients
    found = {
        "method": type(model).__name__, "measure": model.measure, "alone": alone, "federated": federated.score(rows),
        **_fit_in_one_place(federated, whole, rows, settings), **federated.plain(short=True), **({"curves": curves} if (curves := federated.curves) else {}),
        **({"notices": told} if told else {}),
    }  # fmt: skip
    more = [f"{name} alone: {reason}" for name, reason in reasons.items()] + (
        []
        if test is None
        else [
            *_name_unknown(federated, test),
            *name_units_of_test(tables, test),
            *_compare_with_test(federated, whole, test),
        ]
    )
    if more:
        found["notices"] = [*found.get("notices", ()), *more]
    if page is not None:
        _write_page(results[0], found, page)
    return found, federated


def _count_truths(table: DataTable, model: FitMethod, words: Sequence[str]) -> DataTable:
    """The table with true and false as 1 and 0 where they are numbers, which other sites may write: not in labels and groups, whose values are words."""
    from atoll.data import DataTable
    from atoll.data.readers._words import read_truths

    kept = {*model.grouped, *words}
    found = {name: read_truths(table[name]) for name in table.columns if name not in kept}
    made = {name: truths for name, truths in found.items() if truths is not None}
    columns = {name: made.get(name, table[name]) for name in table.columns}
    return DataTable(columns, name=table.name, row_offset=table.row_offset)


def _name_unknown(model: FittedModel, test: DataTable) -> list[str]:
    """Say how many test rows are left out, and how many have a value that no site has, where such rows have none of the values."""
    from atoll.fitting.rows import count_left_out

    left_out, counts = count_left_out(test, model.layout)
    lost = [f"{left_out} of {len(test)} test rows are left out of the score: a label or a value is missing"] if left_out else []  # fmt: skip
    return lost + [
        f"{count} of {len(test)} test rows have none of the values of {name}: all of its columns are 0 there"
        for name, count in counts.items()
        if count
    ]


def _compare_with_test(model: FittedModel, whole: DataTable, test: DataTable) -> list[str]:
    from atoll.data.repeats import name_shared_rows
    from atoll.fitting.rows import rows_of

    if not model.layout.label or not model.method.featured:
        return []
    train, held = (rows_of(table, model.layout, "test") for table in (whole, test))
    return name_shared_rows(np.column_stack([train.x, train.y]), {"test rows": np.column_stack([held.x, held.y])})


def _fit_in_one_place(
    federated: FittedModel, whole: DataTable, rows: DataTable, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What a library finds on all rows, or why it does not."""
    try:
        one = fit_pooled(federated, whole, rows, settings.get("impute", ""), settings.get("scale", ""))
    except MissingExtraError as error:
        note = f"{error.what}: {error.remedy}"
    except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        note = f"the library cannot fit these rows: {error}"
    else:
        told = {"pooled_coefficients": one.coefficients} if one.coefficients else {}
        return {"pooled": one.score, "pooled_by": one.library, "difference": one.difference, **told}
    return {"pooled": None, "pooled_by": None, "difference": None, "pooled_note": note}


def _without_noise(model: FitMethod) -> FitMethod:
    return replace(model, epsilon=0.0) if getattr(model, "epsilon", 0.0) else model  # type: ignore[call-arg]


def _score_alone(score: Any, site: str, reasons: dict[str, str]) -> float | None:
    """The score of a site alone; none where it cannot fit, for example because it has one class, and then the reason."""
    try:
        value = float(score())
    except AtollError as error:
        reasons[site] = error.what
        return None
    if not math.isfinite(value):
        reasons[site] = "its score on these rows is no number"
        return None
    return value


# Trees of a federation beside those of each site alone and of all rows in one place: what ``atoll trees`` shows.


_ORDERS, _BINS, _TEST = 3, 256, 0.2
"""Other orders of all rows, XGBoost's bins, and the share of rows that are kept apart for a test."""


def compare_trees(
    files: Sequence[Path],
    test: Path | None,
    label: str,
    settings: Mapping[str, Any],
    *,
    secure: bool,
    seed: int,
    missing_features: bool = False,
    task: str | None = None,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: Mapping[str, Sequence[str]] | None = None,
    form: Mapping[str, Any] | None = None,
    page: Path | None = None,
) -> tuple[dict[str, Any], Ensemble]:
    """Grow trees over all sites, for each site alone, and over all rows in one place.

    Where XGBoost is installed, it grows the latter two: one party's ``bagging`` is XGBoost itself. Of many rows its cuts depend on their order, which masked sums do not show: beside
    these it also grows the trees of all rows in other orders.

    Args:
        files: one CSV file a site, or a folder with one.
        test: file with test rows; by default a fifth of each site's rows, drawn by the seed, is kept apart.
        label: column to predict.
        settings: of `atoll.trees.Trees`.
        secure: whether to mask sums.
        seed: of samples, and of test rows.
        missing_features: whether cells of features may be empty.
        task: whether the label is a ``"classification"`` or a ``"regression"``; by default its values say it.
        columns: features; by default all columns but the label.
        drop: columns to leave out.
        categories: agreed values of a column, in the order of their codes.
        form: ``delimiter``, ``decimal`` and ``encoding`` of the files.
        page: file for a report of the federation's trees, with the comparison.

    Returns:
        ``measure`` (auc, rmse or accuracy), ``alone`` by site, ``federated``, ``pooled``, all on the test rows (``pooled`` of histograms is XGBoost's, and without it ``None`` with a
        ``pooled_note``), and ``pooled_shuffled``, a list, where ``pooled`` depends on the order of
        the rows and ``federated`` does not; of classes ``auc`` in the same way, of several the mean of each against all others; ``importance``, the share of the gain of each feature in
        the federation's trees; ``classes``; ``test``, which rows these are; the result's ``notices``, if there are any. And the federation's trees.
    """
    from atoll.data import Islands
    from atoll.data.missing import known_rows
    from atoll.data.readers import from_csv_files
    from atoll.trees.objectives import SQUARED, objective_of
    from atoll.trees.sketch import SketchSizes
    from atoll.trees.tree import auc, score

    islands = from_csv_files(
        files, target=label, test=test, task=task, missing_features=missing_features, features=list(columns) or None, drop=drop,
        categories=dict(categories or {}), **(form or {}),
    )  # fmt: skip
    islands, kept, doubled = (islands, str(test), []) if test is not None else _keep_test_rows(islands, seed)
    held: Dataset = known_rows(islands.test, "trees")
    objective = objective_of("auto", islands.about)
    grow, results = partial(_grow_trees, seed=seed), list[Any]()
    ours = settings["scheme"] == "histogram"
    beside_xgboost = ours and find_spec("xgboost") is not None
    # The files are all here, so that exact cuts disclose nothing.
    more = {**({"reducer": _mask_sums(islands)} if secure else {}), **({"exact_cuts": True} if ours else {})}
    ordinary = {**settings, "scheme": "bagging"} if beside_xgboost else dict(settings)
    alone: dict[str, Ensemble | None] = {}
    for shard in islands:
        data = Islands.from_datasets({shard.name: shard.dataset()})
        alone[shard.name] = grow(data, ordinary) if len(set(shard.y.tolist())) > 1 else None
    ensemble, union = grow(islands, {**settings, **more}, results=results), islands.pooled()

    measures = {"score": lambda made: score(objective, held["y"], made)[1], "auc": lambda made: auc(held["y"], made)}

    def measure_trees(trees: Ensemble | None, by: str = "score") -> float | None:
        return None if trees is None else _if_known(measures[by](trees.predict(held["x"])))

    def tell_measures(by: str) -> dict[str, Any]:
        each = {name: measure_trees(trees, by) for name, trees in alone.items()}
        return {"alone": each, "federated": measure_trees(ensemble, by), "pooled": measure_trees(pooled, by)}

    missing = ours and not beside_xgboost  # never our own code beside itself
    pooled = None if missing else grow(Islands.from_datasets({"all": union}), ordinary)
    lacking = doubled + _note_rows(alone, union, "" if task is not None or label in (categories or {}) else label)
    name = score(objective, held["y"], ensemble.predict(held["x"]))[0]
    found: dict[str, Any] = {"measure": name, **tell_measures("score")}
    if objective.name != SQUARED:
        found["auc"] = tell_measures("auc")
    found |= {"pooled_note": _NO_XGBOOST} if missing else {}
    found |= {**_describe_trees(ensemble, [*results[0].notices, *lacking]), "test": {"rows": len(held), "from": kept}}
    if page is not None:
        _write_page(results[0], found, page)
    if secure and beside_xgboost and len(union) > SketchSizes.of(len(union), _BINS).queue:
        others = [grow(Islands.from_datasets({"all": one}), ordinary) for one in _in_other_orders(union, seed)]
        found["pooled_shuffled"] = [value for value in map(measure_trees, others) if value is not None]
    return found, ensemble


def _note_rows(alone: Mapping[str, Any], union: Dataset, unasked: str) -> list[str]:
    """Say which sites have one class, and whether a label of numbers, of which nobody said the task, counts as classes."""
    return [
        *(f"{name} alone: its rows have one class" for name, trees in alone.items() if trees is None),
        *(_name_numbers_as_classes(unasked, union.about.labels) if unasked else []),
    ]


def _name_numbers_as_classes(label: str, classes: Sequence[str]) -> list[str]:
    """Say that a label of several whole numbers was taken for classes, which have no order: counts and amounts are often meant."""
    if len(classes) < 3 or not all(name.removeprefix("-").isdecimal() for name in classes):
        return []
    many, remedy = len(classes), "for counts and amounts give --task regression, for classes --task classification"
    return [f"the label {label!r} has {many} whole numbers, which count as {many} classes without an order: {remedy}"]


def _describe_trees(ensemble: Ensemble, notices: Sequence[str]) -> dict[str, Any]:
    return {
        **({"notices": list(notices)} if notices else {}),
        "importance": dict(sorted(ensemble.importance().items(), key=lambda item: -item[1])),
        "classes": list(ensemble.columns.classes) if ensemble.columns else [],
    }


def _in_other_orders(rows: Dataset, seed: int) -> list[Dataset]:
    return [rows.take(np.random.default_rng([seed, k]).permutation(len(rows))) for k in range(_ORDERS)]


_NO_XGBOOST = 'all rows in one place are for XGBoost, which is not installed: pip install "atoll[trees]"'


def _grow_trees(data: Islands, given: Mapping[str, Any], *, seed: int, results: list[Any] | None = None) -> Ensemble:
    from atoll.runs.config import job_class
    from atoll.simulation import simulate

    result = simulate(job_class("trees")(**given), data, engine="inline", seed=seed, progress=False)
    if results is not None:
        results.append(result)
    grown: Ensemble = result.outcome
    return grown


def _if_known(value: float) -> float | None:
    """A measure; none where the test rows have one class alone."""
    return value if math.isfinite(value) else None


def _keep_test_rows(islands: Islands, seed: int) -> tuple[Islands, str, list[str]]:
    """Keep a share of each site's rows apart, which nobody trains on; say so, and which sites have the same rows: after the split nobody sees it."""
    from atoll.data.repeats import name_repeated_rows

    train, test = islands.holdout(_TEST, seed)
    if not int(np.sum(test.sizes)):
        raise DataError(
            f"no site has enough rows to keep {_TEST:.0%} of them apart for a test",
            where="--test",
            remedy="give a file with test rows",
        )
    kept = f"{_TEST:.0%} of each site's rows, drawn by seed {seed}, which no site trains on"
    return train.with_test(test.pooled()), kept, name_repeated_rows(islands)


def _mask_sums(islands: Islands) -> Reducer:
    """Masked sums whose range is what the most rows of a site can add up to."""
    from atoll.secure import FixedPoint
    from atoll.secure.masking import SecureAggregation

    return SecureAggregation(codec=FixedPoint(value_bits=48, weight_bits=0, value_range=float(max(islands.sizes))))
