"""What people read of a fit: coefficients, curves, clusters and components, as tables and pictures in plain data.

Models here are a `FittedModel`, which imports this module. The command line prints the tables, and a report draws the pictures too (`atoll.report.page`). `Readings` are the numbers behind them, as a dict and as a data frame.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atoll.core.extras import need

from .numerics import quantile_for, two_sided_normal, two_sided_t

__all__ = ["Readings", "read_coefficients", "read_curves", "sections_of"]

Section = dict[str, Any]
_PICTURED, _FEW = 40, 30
"""Most coefficients of a picture, and most times of a printed curve."""


class Readings(dict[str, dict[str, Any]]):
    """Numbers by name, such as ``estimate`` and ``error`` by column: a dict, and with `to_pandas` a frame."""

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``: a row a name; where a name has lists, as the times of a curve, a row each of them, with the name in the first column, ``group``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        pandas = need("pandas", "compare", "to_pandas")
        if not any(isinstance(value, list) for one in self.values() for value in one.values()):
            return pandas.DataFrame.from_dict(dict(self), orient="index")
        parts = [pandas.DataFrame({"group": name, **one}) for name, one in self.items()]
        return pandas.concat(parts, ignore_index=True)


def read_coefficients(model: Any) -> Readings:
    """`FittedModel.coefficients`."""
    params, names = model.params, list(model.features)
    if "standard_error" not in params or "coef" not in params:
        return Readings()
    coef, errors = (np.atleast_2d(np.asarray(params[name])) for name in ("coef", "standard_error"))
    if "intercept" in params:
        coef, errors = (
            np.concatenate([whole, np.reshape(params[name], (-1, 1))], axis=1)
            for whole, name in ((coef, "intercept"), (errors, "intercept_error"))
        )
        names.append("(intercept)")
    freedom = float(params["freedom"]) if "freedom" in params else None
    wide = quantile_for(0.05, freedom) if freedom is None or freedom > 0 else np.nan
    made = Readings()
    for k, (row, spread) in enumerate(zip(coef, errors, strict=True)):
        for name, estimate, error in zip(names, row.tolist(), spread.tolist(), strict=True):
            key = f"{name} [{model.layout.classes[k]}]" if len(coef) > 1 else name
            made[key] = _tell_coefficient(estimate, error, wide, freedom, hazard="baseline" in params)
    return made


def _tell_coefficient(
    estimate: float, error: float, wide: float, freedom: float | None, *, hazard: bool
) -> dict[str, float]:
    low, high = estimate - wide * error, estimate + wide * error
    p = np.nan
    if error > 0:
        p = two_sided_normal(estimate / error) if freedom is None else two_sided_t(estimate / error, freedom)
    made = {"estimate": estimate, "error": error, "low": low, "high": high, "p": p}
    if hazard:
        with np.errstate(over="ignore"):
            ratios = np.exp([estimate, low, high]).tolist()
        made |= dict(zip(("ratio", "ratio_low", "ratio_high"), ratios, strict=True))
    return made


def read_curves(model: Any) -> Readings:
    """`FittedModel.curves`."""
    params = model.params
    if "survival" not in params:
        return Readings()
    wide, made = quantile_for(0.05, None), Readings()
    rows = zip(
        *(np.asarray(params[name]) for name in ("groups", "at_risk", "events", "survival", "standard_error")),
        strict=True,
    )
    for group, at_risk, events, survival, error in rows:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            away = np.exp(wide * error / survival)
        told = survival > 0
        made[str(group)] = {
            "time": np.asarray(params["times"]).tolist(), "at_risk": at_risk.tolist(), "events": events.tolist(), "survival": survival.tolist(),
            "error": error.tolist(), "low": np.where(told, survival / away, np.nan).tolist(),
            "high": np.where(told, np.minimum(survival * away, 1.0), np.nan).tolist(),
        }  # fmt: skip
    return made


# Sections, as `atoll.report.page` takes them.


def sections_of(model: Any) -> list[Section]:
    """What the fit found, then what must be known of it."""
    made = [
        *_tell_coefficients(model),
        *_tell_curves(model),
        *_tell_clusters(model),
        *_tell_components(model),
        *_tell_classes(model),
    ]
    first, *others = made or [{"title": type(model.method).__name__, "text": _describe(model), "tables": []}]
    notes = [str(note) for note in model.told.get("notes", ())]
    return [
        {**first, "tiles": _tiles_of(model)},
        *others,
        *({"title": "Note", "text": note, "tables": []} for note in notes),
    ]


def _tiles_of(model: Any) -> list[list[str]]:
    """The headline numbers: method, rows, and how well the model fits where a method says it."""
    told = model.told
    tiles = [["method", type(model.method).__name__, "converged" if told.get("converged", True) else "not converged"]]
    if "rows" in told:
        tiles.append(["rows", _format(told["rows"]), f"{len(model.features):,} features" if model.features else ""])
    names = [name for name in ("inertia", "concordance", "log_likelihood") if np.size(model.params.get(name, [])) == 1]
    return [
        *tiles,
        *([name.replace("_", "-"), _format(np.reshape(model.params[name], -1)[0].item()), ""] for name in names),
    ]


def _describe(model: Any, *names: str) -> str:
    """``rows 180, contacts 5``, with parameters of one number, as a sentence."""
    told = {**model.told, **{name: model.params[name] for name in names if name in model.params}}
    facts = [
        f"{told['rows']:,} rows" if "rows" in told else "",
        f"{told['contacts']} contacts" if "contacts" in told else "",
    ]
    facts += ["" if told.get("converged", True) else "not converged"]
    facts += [f"{name.replace('_', ' ')} {_format(told[name])}" for name in names if name in told]
    return f"{', '.join(fact for fact in facts if fact)}."


def _tell_coefficients(model: Any) -> list[Section]:
    told = model.coefficients
    if not told:
        return []
    hazard = "baseline" in model.params
    head = ["column", *(name.replace("_", " ") for name in next(iter(told.values())))]
    rows = [
        [name, *(_format_p(v) if key == "p" else _format(v) for key, v in one.items())] for name, one in told.items()
    ]
    drawn = {
        name: one for name, one in told.items() if name.split(" [")[0] != "(intercept)" and math.isfinite(one["low"])
    }
    ends = ("ratio", "ratio_low", "ratio_high") if hazard else ("estimate", "low", "high")
    drawn = {name: one for name, one in drawn.items() if all(1e-30 < abs(one[key]) < 1e30 for key in ends)}
    figure = {
        "name": "hazard ratios" if hazard else "coefficients", "kind": "intervals", "labels": [*drawn][:_PICTURED], "log": hazard, "line": 1.0 if hazard else 0.0,
        **{key: [one[name] for one in drawn.values()][:_PICTURED] for key, name in zip(("values", "low", "high"), ends, strict=True)},
    }  # fmt: skip
    return [
        {
            "title": "Hazard ratios" if hazard else "Coefficients",
            "text": _describe(model, "rank", "condition", "r2", "loss", "log_likelihood"),
            "tables": [{"head": head, "rows": rows}],
            "figures": [figure] if drawn else [],
        }
    ]


def _tell_curves(model: Any) -> list[Section]:
    curves, params = model.curves, model.params
    if not curves:
        return []
    text = _describe(model)
    if "logrank" in params:
        text += f" Log-rank test: chi squared {_format(params['logrank'])} with {len(curves) - 1} degrees of freedom, p {_format_p(params['p_value'])}."
    several = len(curves) > 1
    medians, tables = np.asarray(params["median"]).tolist(), []
    rows = []
    # Models saved by an earlier version know only who is at risk at the first time.
    sizes = params.get("rows", [max(one["at_risk"], default=0) for one in curves.values()])
    for (group, one), median, size in zip(curves.items(), medians, np.asarray(sizes).tolist(), strict=True):
        reached = _format(median) if math.isfinite(median) else "not reached"
        rows.append([group, f"{size:,.0f}", f"{sum(one['events']):,.0f}", reached])
    tables.append({"head": ["group", "rows", "events", "median"], "rows": rows})
    head = [*(["group"] if several else []), "time", "at risk", "events", "survival", "error", "low", "high"]
    rows = []
    for group, one in curves.items():
        places = [k for k, n in enumerate(one["events"]) if n > 0]
        if len(places) > _FEW:
            places = [places[k] for k in np.unique(np.linspace(0, len(places) - 1, _FEW).round().astype(int)).tolist()]
        for k in places:
            cells = [
                _format(one[name][k]) for name in ("time", "at_risk", "events", "survival", "error", "low", "high")
            ]
            rows.append([*([group] if several else []), *cells])
    tables.append({"head": head, "rows": rows})
    series = [
        {"name": group, "x": [0.0, *one["time"]], "values": [1.0, *one["survival"]], "low": [1.0, *one["low"]], "high": [1.0, *one["high"]]}
        for group, one in curves.items()
    ]  # fmt: skip
    figure = {"name": "survival", "kind": "steps", "series": series, "across": "time", "up": "share without the event"}
    return [{"title": "Survival", "text": text, "tables": tables, "figures": [figure]}]


def _tell_clusters(model: Any) -> list[Section]:
    params = model.params
    name = next((one for one in ("centres", "means") if one in params), "")
    if not name:
        return []
    sizes = np.asarray(params["sizes" if name == "centres" else "weights"]).tolist()
    head = ["cluster", "rows" if name == "centres" else "weight", *model.features]
    rows = [
        [str(k), _format(size), *map(_format, one)]
        for k, (size, one) in enumerate(zip(sizes, np.asarray(params[name]).tolist(), strict=True))
    ]
    return [
        {
            "title": "Clusters",
            "text": _describe(model, "iterations", "log_likelihood"),
            "tables": [{"head": head, "rows": rows}],
        }
    ]


def _tell_components(model: Any) -> list[Section]:
    if "components" not in model.params:
        return []
    shares = np.asarray(model["explained_variance_ratio"]).tolist()
    rows = [
        [str(k), _format(share), *map(_format, one)]
        for k, (share, one) in enumerate(zip(shares, np.asarray(model["components"]).tolist(), strict=True))
    ]
    figure = {
        "name": "explained variance",
        "kind": "bars",
        "labels": [row[0] for row in rows],
        "series": [{"name": "share", "values": shares}],
    }
    head = ["component", "explained", *model.features]
    return [
        {"title": "Components", "text": _describe(model), "tables": [{"head": head, "rows": rows}], "figures": [figure]}
    ]


def _tell_classes(model: Any) -> list[Section]:
    shares, names = (
        model.params.get("priors", model.params.get("class_prior")),
        [str(name) for name in model.layout.classes],
    )
    if shares is None or len(shares) != len(names):
        return []
    values = [float(share) for share in shares]
    rows = [[name, _format(value)] for name, value in zip(names, values, strict=True)]
    figure = {
        "name": "shares of the classes",
        "kind": "bars",
        "labels": names,
        "series": [{"name": "share", "values": values}],
    }
    table = {"head": ["class", "share of the rows"], "rows": rows}
    return [{"title": "Classes", "text": _describe(model), "tables": [table], "figures": [figure]}]


def _format(value: Any) -> str:
    if value is None or not np.isfinite(value):
        return "-" if value is None or np.isnan(value) else "infinite"
    return f"{value:,}" if isinstance(value, int) else f"{float(value):.5g}"


def _format_p(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else _format(round(value, 4)) if math.isfinite(value) else "-"
