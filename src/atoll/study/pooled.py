"""What an independent library finds on all rows in one place: statsmodels for linear models and survival, scikit-learn for the rest.

A comparison of a fit with itself proves nothing: both would be wrong in the same way. So nothing here calls `atoll.fitting` to fit. The library gets columns that are centred, and scaled
where the model allows it, because its own solver may lose digits as well; what it finds is changed back into the columns' own units.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.extras import need

if TYPE_CHECKING:
    from atoll.data import DataTable
    from atoll.fitting import FittedModel
    from atoll.fitting.rows import FeatureLayout, PartyRows

__all__ = ["PooledFit", "fit_pooled"]

Numbers = NDArray[np.float64]
_ROUNDING = 8 * float(np.finfo(np.float64).eps)
_TINY = 1e-13
"""A column whose spread is at most this share of its mean is constant, and one that others explain up to this share is dropped."""


@dataclass(frozen=True)
class PooledFit:
    """A library's fit of all rows.

    Attributes:
        library: name and version.
        score: of the test rows: the method's own measure.
        difference: the largest difference of the federation from it, in standard deviations: of linear predictors where there are any, else of centres, scores of components or log-odds of
            classes; of curves, of the probability itself. ``None`` if there is no optimum to compare.
        coefficients: ``estimate`` and ``error`` by column, in the columns' own units; columns that others explain are left out.
    """

    library: str
    score: float
    difference: float | None
    coefficients: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def fit_pooled(found: FittedModel, whole: DataTable, test: DataTable, impute: str, scale: str) -> PooledFit:
    """Fit the same model to all rows with a library, and compare.

    Args:
        found: the federation's model.
        whole: all rows.
        test: rows to score on.
        impute: of the job; the library's own imputer repeats it.
        scale: of the job; likewise.

    Raises:
        MissingExtraError: the library is not installed.
        ValueError: the library cannot fit such rows.
    """
    from atoll.fitting.rows import rows_of

    layout = _prepare(found.layout, whole, impute, scale)
    ours, theirs, held = (
        rows_of(table, one, "pooled") for table, one in ((whole, found.layout), (whole, layout), (test, layout))
    )
    fit: Callable[..., PooledFit] = _FITS[type(found.method).__name__]
    # Of separation, say, which the result tells in its own words. statsmodels asks for its warnings when it is loaded, so that a filter does not keep them.
    with warnings.catch_warnings(record=True), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return fit(_Pooling(found.method, found.params, layout, ours, theirs, held))


def _prepare(layout: FeatureLayout, whole: DataTable, impute: str, scale: str) -> FeatureLayout:
    """The layout whose numbers come from scikit-learn's imputers and scalers of all rows."""
    from atoll.fitting.rows import column_of

    if not (impute or scale):
        return layout
    columns = [column_of(whole, name, category=False).values for name in layout.numbers]
    x = np.stack([np.asarray(one, dtype=np.float64) for one in columns], axis=1) if columns else np.zeros((0, 0))
    x[~np.isfinite(x)] = np.nan
    if impute:
        fill = dict(layout.fill)
        for name in layout.levels:
            names, codes, _ = column_of(whole, name, category=True).coded
            counts = np.bincount(codes, minlength=len(names))
            fill[name] = max(
                layout.levels[name], key=lambda one: dict(zip(map(str, names), counts, strict=True)).get(one, 0)
            )
        if columns:
            imputer = need("sklearn.impute", "compare", "pooled").SimpleImputer(strategy=impute).fit(x)
            fill |= dict(zip(layout.numbers, imputer.statistics_.tolist(), strict=True))
            x = imputer.transform(x)
        layout = replace(layout, fill=fill)
    if scale and columns:
        kind = {"standard": "StandardScaler", "minmax": "MinMaxScaler", "robust": "RobustScaler"}[scale]
        scaler = getattr(need("sklearn.preprocessing", "compare", "pooled"), kind)().fit(x)
        centre = {"standard": "mean_", "minmax": "data_min_", "robust": "center_"}[scale]
        spread = scaler.data_range_ if scale == "minmax" else scaler.scale_
        layout = layout.with_scale(getattr(scaler, centre), spread)
    return layout


@dataclass(frozen=True)
class _Pooling:
    """What a comparison has: the model and its numbers, and the rows as the federation, the library and the score see them."""

    model: Any
    params: Mapping[str, Any]
    layout: FeatureLayout
    ours: PartyRows
    theirs: PartyRows
    held: PartyRows

    @property
    def mean(self) -> Numbers:
        """Means of the library's columns."""
        first = self.theirs.x.mean(axis=0)
        return np.asarray(first + (self.theirs.x - first).mean(axis=0))

    @property
    def spread(self) -> Numbers:
        """Their standard deviations; 0 of a constant column."""
        mean = self.mean
        found = np.sqrt(((self.theirs.x - mean) ** 2).mean(axis=0))
        return np.where(found > _TINY * np.abs(mean), found, 0.0)

    @property
    def unit(self) -> float:
        """One unit for all columns: the root of their mean variance."""
        found = float(np.sqrt((self.spread**2).mean())) if len(self.spread) else 0.0
        return found or 1.0

    def score(self, params: Mapping[str, Any]) -> float:
        """The measure of the library's numbers on the test rows."""
        return float(self.model.score(params, self.held, self.layout.classes))


def _library(name: str) -> str:
    return f"{name} {version(name)}"


def _far(ours: Any, theirs: Any) -> float:
    """The largest difference, in standard deviations of the library's values around their means; what rounding of the values themselves makes is none.

    Under a large penalty values may differ in their last digits alone: then their deviations are no larger than the rounding of their mean.
    """
    theirs = np.asarray(theirs, dtype=np.float64)
    away = np.abs(np.asarray(ours) - theirs).max(initial=0.0)
    away = max(0.0, away - _ROUNDING * np.abs(theirs).max(initial=0.0))
    spread = float(np.sqrt(((theirs - theirs.mean(axis=0)) ** 2).mean())) if theirs.size else 0.0
    return float(away / spread if spread > 0 else away)


# Linear models and hazards: statsmodels.


@dataclass(frozen=True)
class _Columns:
    """Centred columns of about equal size under the penalty, and the way back.

    A penalty ``alpha |w|^2`` of coefficients in their own units is ``weights`` of those of the scaled columns. Without one, columns that others explain are dropped: predictions are the same.

    Attributes:
        z: ``(rows, kept)``.
        kept: places of the columns.
        back: what the coefficients are multiplied by.
        centre: of the kept columns.
        weights: of the squares of the coefficients.
    """

    z: Numbers
    kept: NDArray[np.int64]
    back: Numbers
    centre: Numbers
    weights: Numbers

    @classmethod
    def of(cls, asked: _Pooling, alpha: float) -> _Columns:
        """The columns of a fit with this penalty."""
        mean, spread = asked.mean, asked.spread
        kept = np.flatnonzero(spread)
        z = (asked.theirs.x[:, kept] - mean[kept]) / spread[kept]
        if not alpha and len(kept):
            _, size, order = need("scipy.linalg", "compare", "pooled").qr(z, mode="economic", pivoting=True)
            found = np.abs(np.diag(size))
            order = np.sort(order[: len(found)][found > 1e3 * _TINY * found[0]])
            z, kept = z[:, order], kept[order]
        weights = alpha / spread[kept] ** 2
        shrink = np.sqrt(1 + weights / max(1, len(z)))
        return cls(z / shrink, kept, 1 / (spread[kept] * shrink), mean[kept], weights / shrink**2)

    def with_constant(self) -> Numbers:
        """The columns, and a last one of 1."""
        return np.concatenate([self.z, np.ones((len(self.z), 1))], axis=1)

    def in_units(self, at: Numbers, spread: Numbers | None, width: int) -> tuple[Numbers, Numbers]:
        """Coefficients with the intercept last, and standard errors, ``(width + 1,)``; NaN where a column is left out."""
        change = np.zeros((width + 1, len(at)))
        change[self.kept, np.arange(len(self.kept))] = self.back
        change[-1, :-1], change[-1, -1] = -self.centre * self.back, 1.0
        errors = np.full(width + 1, np.nan)
        told = np.append(self.kept, width)
        if spread is not None:
            errors[told] = np.sqrt(np.maximum(np.diag(change @ spread @ change.T), 0.0))[told]
        made = change @ at
        return made, errors


def _fit_ridge(asked: _Pooling) -> PooledFit:
    linear = need("statsmodels.regression.linear_model", "compare", "pooled").OLS
    alpha, y = float(asked.model.alpha), np.asarray(asked.theirs.y, dtype=np.float64)
    columns, level = _Columns.of(asked, alpha), y.mean()
    model = linear(y - level, columns.with_constant())
    if alpha:
        weights = np.append(columns.weights, 0.0) / len(y)
        at, spread = np.asarray(model.fit_regularized("elastic_net", alpha=weights, L1_wt=0.0).params), None
    else:
        done = model.fit(method="qr")
        at, spread = np.asarray(done.params), np.asarray(done.cov_params())
    at[-1] += level
    return _compare_linear(asked, columns, at[None], None if spread is None else spread[None])


def _fit_glm(asked: _Pooling) -> PooledFit:
    if asked.model.family == "binomial" and len(asked.layout.classes) > 2:
        return _fit_classes(asked)
    genmod = need("statsmodels.genmod.generalized_linear_model", "compare", "pooled")
    families = need("statsmodels.genmod.families", "compare", "pooled")
    columns, alpha = _Columns.of(asked, float(asked.model.alpha)), float(asked.model.alpha)
    family = families.Poisson() if asked.model.family == "poisson" else families.Binomial()
    y, x = np.asarray(asked.theirs.y, dtype=np.float64), columns.with_constant()
    if alpha:
        start = np.zeros(x.shape[1])
        start[-1] = np.log(max(float(y.mean()), 0.5 / len(y))) if asked.model.family == "poisson" else 0.0
        done = _maximise(_penalise_model(genmod.GLM, np.append(columns.weights, 0.0), y, x, family=family), start)
    else:
        done = genmod.GLM(y, x, family=family).fit(maxiter=200, tol=1e-12, tol_criterion="params")
    return _compare_linear(asked, columns, np.asarray(done.params)[None], np.asarray(done.cov_params())[None])


def _fit_classes(asked: _Pooling) -> PooledFit:
    """Several classes: statsmodels has coefficients against the first class; these are changed into those against the mean of all, which the penalty is of."""
    logit = need("statsmodels.discrete.discrete_model", "compare", "pooled").MNLogit
    alpha, classes = float(asked.model.alpha), len(asked.layout.classes)
    columns, y = _Columns.of(asked, alpha), np.asarray(asked.theirs.y)
    if len(np.unique(y)) < classes:
        raise ValueError("a class has no row")
    x = columns.with_constant()
    against = np.concatenate([np.zeros((1, classes - 1)), np.eye(classes - 1)]) - 1 / classes
    change = np.kron(against, np.eye(x.shape[1]))
    weights = np.tile(np.append(columns.weights, 0.0), classes)
    done = _maximise(_penalise_model(logit, weights, y, x, restriction=change), np.zeros((classes - 1) * x.shape[1]))
    at = (change @ np.asarray(done.params).reshape(-1, order="F")).reshape(classes, -1)
    spread = change @ np.asarray(done.cov_params()) @ change.T
    size = x.shape[1]
    return _compare_linear(
        asked,
        columns,
        at,
        np.stack([spread[k * size : (k + 1) * size, k * size : (k + 1) * size] for k in range(classes)]),
    )


def _fit_cox(asked: _Pooling) -> PooledFit:
    hazards = need("statsmodels.duration.hazard_regression", "compare", "pooled").PHReg
    model, columns = asked.model, _Columns.of(asked, float(asked.model.alpha))
    time, event = (np.asarray(asked.theirs.extra[name], dtype=np.float64) for name in (model.time, model.event))
    found = _maximise(
        _penalise_model(hazards, columns.weights, time, columns.z, status=event, ties=model.ties),
        np.zeros(len(columns.kept)),
    )
    at, spread = np.append(found.params, 0.0), np.zeros((len(columns.kept) + 1,) * 2)
    spread[:-1, :-1] = found.cov_params()
    return _compare_linear(asked, columns, at[None], spread[None])


def _penalise_model(kind: Any, weights: Numbers, y: Any, x: Numbers, restriction: Any = None, **settings: Any) -> Any:
    """A model of statsmodels with the penalty ``sum weights (restriction params)^2 / 2``."""
    mixin, penalties = (need(f"statsmodels.base.{name}", "compare", "pooled") for name in ("_penalized", "_penalties"))
    if not weights.any():
        return kind(y, x, **settings)
    penalty = (
        penalties.L2(weights / 2)
        if restriction is None
        else penalties.L2ConstraintsPenalty(restriction=np.sqrt(weights / 2)[:, None] * restriction)
    )
    return type(f"Penalised{kind.__name__}", (mixin.PenalizedMixin, kind), {})(
        y, x, penal=penalty, pen_weight=1.0, **settings
    )


def _maximise(model: Any, start: Numbers) -> Any:
    """Newton's method of statsmodels; where it strays, from the end of a descent."""
    given = {"maxiter": 200, "disp": 0, "tol": 1e-10}
    done = model.fit(method="newton", start_params=start, **given)
    if not np.isfinite(done.params).all() or np.abs(done.params).max(initial=0.0) > 1e6:
        near = model.fit(method="bfgs", start_params=start, maxiter=500, disp=0)
        done = model.fit(method="newton", start_params=np.asarray(near.params).reshape(-1, order="F"), **given)
    if not np.isfinite(done.params).all():
        raise ValueError("no optimum was found")
    return done


def _compare_linear(asked: _Pooling, columns: _Columns, at: Numbers, spread: Numbers | None) -> PooledFit:
    """The library's linear predictors beside the federation's.

    Args:
        asked: what was fitted.
        columns: the scaled columns.
        at: their coefficients, and the intercept at their means, ``(outputs, kept + 1)``.
        spread: covariances, ``(outputs, kept + 1, kept + 1)``.
    """
    width = asked.theirs.x.shape[1]
    found = [columns.in_units(one, None if spread is None else spread[k], width) for k, one in enumerate(at)]
    coef, errors = (np.array(part) for part in zip(*found, strict=True))
    theirs = columns.z @ at[:, :-1].T + at[:, -1]
    params = asked.params
    mean = asked.ours.x.mean(axis=0)
    slope = np.atleast_2d(np.asarray(params["coef"]))
    # Around the mean both parts are small, so no digit is lost where a column has an offset.
    ours = (asked.ours.x - mean) @ slope.T
    names = list(asked.layout.features)
    if "intercept" in params:
        ours = ours + (mean @ slope.T + np.asarray(params["intercept"]))
        names.append("(intercept)")
        numbers: dict[str, Any] = {"coef": coef[:, :-1], "intercept": coef[:, -1]}
        if np.ndim(params["coef"]) == 1:
            numbers = {"coef": coef[0, :-1], "intercept": float(coef[0, -1])}
    else:
        ours, theirs = ours - ours.mean(axis=0), theirs - theirs.mean(axis=0)
        numbers = {"coef": coef[0, :-1], "mean": asked.mean}
    told: dict[str, dict[str, float]] = {}
    kept = {*columns.kept.tolist(), width}
    for k in range(len(coef)):
        for j, name in enumerate(names):
            if j in kept:
                key = f"{name} [{asked.layout.classes[k]}]" if len(coef) > 1 else name
                told[key] = {"estimate": float(coef[k, j]), "error": float(errors[k, j])}
    if bool(params.get("separated", False)):
        return PooledFit(_library("statsmodels"), asked.score(numbers), None)  # two fits on the way to infinity
    return PooledFit(_library("statsmodels"), asked.score(numbers), _far(ours, theirs), told)


def _fit_curves(asked: _Pooling) -> PooledFit:
    """Kaplan-Meier curves of the rows as they are: what a grid or noise costs is part of the difference."""
    curve = need("statsmodels.duration.survfunc", "compare", "pooled").SurvfuncRight
    model, times = asked.model, np.asarray(asked.params["times"], dtype=np.float64)
    time, event = (np.asarray(asked.theirs.extra[name], dtype=np.float64) for name in (model.time, model.event))
    groups = len(asked.params["groups"])
    group = np.asarray(asked.theirs.extra[model.by]) if model.by else np.zeros(len(time), np.int64)
    made = np.ones((groups, len(times)))
    for k in range(groups):
        if (event[group == k] > 0).any():
            one = curve(time[group == k], event[group == k])
            place = np.searchsorted(one.surv_times, times, side="right")
            made[k] = np.append(1.0, one.surv_prob)[place]
    params = {"times": times, "groups": asked.params["groups"], "survival": made}
    away = float(np.abs(np.asarray(asked.params["survival"]) - made).max(initial=0.0))
    return PooledFit(_library("statsmodels"), asked.score(params), away)


# Clusters, components, naive Bayes and machines: scikit-learn.


def _sklearn(name: str) -> Any:
    return need(f"sklearn.{name}", "compare", "pooled")


def _fit_clusters(asked: _Pooling) -> PooledFit:
    """Lloyd's algorithm from the federation's first centres."""
    mean, unit, start = asked.mean, asked.unit, np.asarray(asked.params["start"], dtype=np.float64)
    begin, x = (_move_points(asked, start) - mean) / unit, (asked.theirs.x - mean) / unit
    tolerance = float(asked.model.tolerance) * x.shape[1]  # scikit-learn's is of the mean variance
    made = _sklearn("cluster").KMeans(len(start), init=begin, n_init=1, tol=tolerance, algorithm="lloyd").fit(x)
    centres = made.cluster_centers_ * unit + mean
    return PooledFit(_library("scikit-learn"), asked.score({"centres": centres}), _apart(asked, centres, "centres"))


def _move_points(asked: _Pooling, points: Numbers) -> Numbers:
    """Points among the federation's columns as points among the library's, whose imputers and scalers may differ by rounding."""
    ours, theirs = asked.ours.x, asked.theirs.x
    if np.array_equal(ours, theirs):
        return points
    there, here = ours.mean(axis=0), theirs.mean(axis=0)
    wide, own = (np.sqrt(((one - one.mean(axis=0)) ** 2).mean(axis=0)) for one in (theirs, ours))
    return np.asarray(here + (points - there) * np.where(own > 0, wide / np.where(own > 0, own, 1.0), 1.0))


def _apart(asked: _Pooling, theirs: Numbers, name: str) -> float:
    spread = np.where(asked.spread > 0, asked.spread, asked.unit)
    ours = _move_points(asked, np.asarray(asked.params[name], dtype=np.float64))
    return float((np.abs(ours - theirs) / spread).max(initial=0.0))


def _fit_mixture(asked: _Pooling) -> PooledFit:
    """Expectation maximisation from the federation's first means."""
    model, mean, unit = asked.model, asked.mean, asked.unit
    begin = (_move_points(asked, np.asarray(asked.params["start"], dtype=np.float64)) - mean) / unit
    x, ridge, k = (asked.theirs.x - mean) / unit, float(model.ridge) / unit**2, len(begin)
    first = 1 / (x.var(axis=0) + ridge)
    full = model.covariance == "full"
    made = _sklearn("mixture").GaussianMixture(
        k, covariance_type=model.covariance, weights_init=np.full(k, 1 / k), means_init=begin,
        precisions_init=np.stack([np.diag(first) if full else first] * k), tol=model.tolerance, reg_covar=ridge, max_iter=1000, random_state=0,
    ).fit(x)  # fmt: skip
    means = made.means_ * unit + mean
    score = asked.score({"weights": made.weights_, "means": means, "covariances": made.covariances_ * unit**2})
    return PooledFit(_library("scikit-learn"), score, _apart(asked, means, "means"))


def _fit_components(asked: _Pooling) -> PooledFit:
    model, unit, decomposition = asked.model, asked.unit, _sklearn("decomposition")
    x, k = asked.theirs.x, int(model.components)
    if model.centred:
        mean = asked.mean
        found = decomposition.PCA(k, svd_solver="full").fit((x - mean) / unit).components_
    else:
        mean, unit = np.zeros(x.shape[1]), float(np.sqrt((x**2).mean())) or 1.0
        how = {"algorithm": "arpack"} if k < min(x.shape) else {"n_oversamples": min(x.shape), "n_iter": 20}
        found = decomposition.TruncatedSVD(k, random_state=0, **how).fit(x / unit).components_
    at = np.asarray(asked.params["mean"]) if model.centred else 0.0
    ours = (asked.ours.x - at) @ np.asarray(asked.params["components"]).T
    score = asked.score({"mean": mean, "components": found})
    return PooledFit(_library("scikit-learn"), score, _far(ours, (x - mean) @ found.T))


def _fit_bayes(asked: _Pooling) -> PooledFit:
    model, bayes, labels = asked.model, _sklearn("naive_bayes"), np.asarray(asked.theirs.y)
    move, unit = (asked.mean, asked.unit) if model.features == "gaussian" else (np.zeros(asked.theirs.x.shape[1]), 1.0)

    def scale_rows(rows: PartyRows) -> Numbers:
        return (rows.x - move) / unit

    if model.features == "gaussian":
        made = bayes.GaussianNB(var_smoothing=model.var_smoothing)
    elif model.features == "multinomial":
        made = bayes.MultinomialNB(alpha=model.alpha)
    else:
        levels = [len(values) for values in asked.layout.levels.values()]
        made = bayes.CategoricalNB(alpha=model.alpha, min_categories=levels)
    made.fit(scale_rows(asked.theirs), labels)
    own = model.estimator(asked.params, asked.layout.classes).predict_log_proba(asked.ours.x)
    library = made.predict_log_proba(scale_rows(asked.theirs))
    away = _far(*(one - one.mean(axis=1, keepdims=True) for one in (own, library)))
    return PooledFit(_library("scikit-learn"), float(made.score(scale_rows(asked.held), asked.held.y)), away)


def _fit_machine(asked: _Pooling) -> PooledFit:
    """The machine of all rows, which that in two steps is near to."""
    model = asked.model
    move = np.zeros(asked.theirs.x.shape[1]) if model.kernel == "poly" else asked.mean
    variance = float(
        (asked.spread**2).mean() + asked.mean.var()
    )  # of all numbers, as gamma="scale" of columns as they are
    gamma = model.gamma or 1 / (len(asked.mean) * variance if variance > 0 else 1.0)
    kind = _sklearn("svm").SVC(C=model.C, kernel=model.kernel, gamma=gamma)
    made = kind.fit(asked.theirs.x - move, asked.theirs.y)
    own = model.estimator(asked.params, asked.layout.classes).decision_function(asked.ours.x)
    away = _far(own, made.decision_function(asked.theirs.x - move))
    return PooledFit(_library("scikit-learn"), float(made.score(asked.held.x - move, asked.held.y)), away)


_FITS: dict[str, Callable[[_Pooling], PooledFit]] = {
    "Cox": _fit_cox, "GLM": _fit_glm, "GaussianMixture": _fit_mixture, "KMeans": _fit_clusters, "KaplanMeier": _fit_curves, "NaiveBayes": _fit_bayes,
    "PCA": _fit_components, "Ridge": _fit_ridge, "SVM": _fit_machine, "TruncatedSVD": _fit_components,
}  # fmt: skip
