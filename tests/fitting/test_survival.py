"""Survival analysis over all parties is that of all rows: against slow references, and against statsmodels and lifelines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError
from atoll.core.requests.policy import SitePolicy
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.fitting import Cox, Fit, FittedModel, KaplanMeier
from atoll.fitting.method import AtParty
from atoll.fitting.page import sections_of
from atoll.fitting.rows import PartyRows
from atoll.reducers import SecureAggregation
from atoll.simulation import run_in
from atoll.statistics.disclosure import noise_std, rate_of


def trial() -> pd.DataFrame:
    draw = np.random.default_rng(5)
    x = draw.normal(size=(180, 3)).round(3)
    time = np.ceil(draw.exponential(np.exp(-x @ [0.5, -0.3, 0.0])) * 20)
    gone = np.ceil(draw.exponential(30, 180))
    made = pd.DataFrame(x, columns=["a", "b", "c"])
    return made.assign(
        time=np.minimum(time, gone), event=(time <= gone).astype(int), arm=np.where(x[:, 2] > 0, "A", "B")
    )


WHOLE = trial()
PARTIES = {"north": WHOLE[:80], "south": WHOLE[80:140], "west": WHOLE[140:]}
EVENTS = np.unique(WHOLE.time[WHOLE.event == 1])
SECURE: dict[str, Any] = {"reducer": SecureAggregation()}


def fit(model: Any, data: Any = None, **settings: Any) -> FittedModel:
    more = {"columns": ["a", "b", "c"]} if isinstance(model, Cox) else {}
    job = Fit(model=model, **{**more, **settings})
    found = atoll.simulate(job, PARTIES if data is None else data, engine="inline", progress=False).outcome
    assert isinstance(found, FittedModel)
    return found


def partial_likelihood(b: Any, ties: str, table: pd.DataFrame = WHOLE) -> float:
    """The partial log-likelihood, read off its definition: a term for every event."""
    eta, made = table[["a", "b", "c"]].to_numpy() @ b, 0.0
    time, event = table.time.to_numpy(), table.event.to_numpy() == 1
    for at in np.unique(time[event]):
        risk, tied = np.exp(eta[time >= at]).sum(), np.exp(eta[(time == at) & event])
        made += float(np.log(tied).sum())
        for k in range(len(tied)):
            made -= math.log(risk - (k / len(tied) if ties == "efron" else 0) * tied.sum())
    return made


@pytest.mark.quick("efron-plain", "breslow-secure")
@pytest.mark.parametrize("how", ["plain", "secure"])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_cox_regression_is_that_of_all_rows(ties: str, how: str) -> None:
    settings, times = (SECURE, EVENTS.tolist()) if how == "secure" else ({}, ())
    found = fit(Cox(ties=ties, times=times), **settings)
    best = partial_likelihood(found["coef"], ties)
    assert found["log_likelihood"] == pytest.approx(best, rel=1e-12)
    step = 1e-4
    for e in step * np.eye(3):  # it is concave, so a slope of 0 is its maximum
        up, down = (partial_likelihood(found["coef"] + sign * e, ties) for sign in (1, -1))
        assert abs(up - down) / (2 * step) < 1e-5
        assert max(up, down) < best


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_a_penalised_hazard_is_the_maximum_of_its_definition(ties: str) -> None:
    found, alpha, step = fit(Cox(ties=ties, alpha=30.0)), 30.0, 1e-4

    def value(b: Any) -> float:
        return partial_likelihood(b, ties) - alpha * float(b @ b) / 2

    for e in step * np.eye(3):
        up, down = (value(found["coef"] + sign * e) for sign in (1, -1))
        assert abs(up - down) / (2 * step) < 1e-5
        assert max(up, down) < value(found["coef"])
    assert found["log_likelihood"] == pytest.approx(value(found["coef"]), rel=1e-12)


def test_pairs_of_equal_risk_count_half() -> None:
    rows = pd.DataFrame({"x": [1.0, 0, 1, 0, 0], "time": [1.0, 2, 3, 4, 4], "event": [1, 1, 1, 1, 0]})
    found = fit(Cox(), {"one": rows[:3], "two": rows[3:]}, columns=["x"])
    assert found["coef"][0] > 0
    # By hand: the first event is right against three and even with one, the second wrong and twice even, the third right twice, the fourth even with the row that leaves with it.
    assert found.score(rows) == pytest.approx((3.5 + 1.0 + 2.0 + 0.5) / 10)


def test_after_the_grid_nothing_is_observed() -> None:
    rows = pd.DataFrame({"time": [4.0, 8, 9, 12, 15, 20], "event": [1, 1, 0, 1, 1, 0]})
    found = fit(KaplanMeier(times=[5.0, 10.0]), {"one": rows[:3], "two": rows[3:]})
    assert found["events"].tolist() == [[1, 1]]
    np.testing.assert_allclose(
        found["survival"], [[5 / 6, 5 / 6 * 3 / 4]]
    )  # the row that leaves at 9 is not at risk at 10
    hazards = Cox(times=[5.0, 10.0]).reply(
        PartyRows(np.zeros((2, 1)), np.zeros(2), {"time": np.array([7.0, 12.0]), "event": np.ones(2)}),
        {"phase": "risk", "grid": [5.0, 10.0], "centre": [0.0], "inverse": [1.0], "at": [0.0]},
        AtParty(np.random.default_rng(0), None),
    )
    assert hazards["d"].tolist() == [0, 1]


@pytest.mark.parametrize("how", [{}, SECURE], ids=["plain", "secure"])
def test_rows_that_leave_before_the_grid_are_rows_of_their_group(how: dict[str, Any]) -> None:
    """Nobody is at risk of them at the first time, but the table counted 159 rows of 210."""
    found = fit(KaplanMeier(times=[30.0, 60.0], by="arm"), categories={"arm": ["A", "B"]}, **how)
    assert found["rows"].tolist() == [int((WHOLE.arm == arm).sum()) for arm in "AB"]
    assert (found["at_risk"][:, 0] < found["rows"]).all()
    tables = sections_of(found)[0]["tables"]
    assert [row[:2] for row in tables[0]["rows"]] == [["A", str((WHOLE.arm == "A").sum())], ["B", str((WHOLE.arm == "B").sum())]]  # fmt: skip
    few = fit(KaplanMeier(times=[30.0, 60.0]), min_count=4)
    assert few["rows"].sum() + few["left_out"] == len(WHOLE)


def test_what_has_exactly_the_minimum_count_is_told_as_it_is() -> None:
    rows = pd.DataFrame({"time": np.repeat([5.0, 10.0, 15.0], 5), "event": np.repeat([1, 1, 0], 5)})
    found = fit(KaplanMeier(times=[5.0, 10.0, 15.0]), {"one": rows}, min_count=5)
    assert (found["moved"], found["left_out"]) == (0, 0)
    assert found["events"].tolist() == [[5, 5, 0]]
    fewer = fit(KaplanMeier(times=[5.0, 10.0, 15.0]), {"one": rows}, min_count=6)
    assert (fewer["moved"], fewer["left_out"]) == (5, 5)


def test_cox_regression_is_that_of_statsmodels() -> None:
    # GOLD: statsmodels 0.15.0, PHReg(time, x, event, ties="efron").fit(method="newton", maxiter=100): params, bse, llf
    found = fit(Cox())
    np.testing.assert_allclose(found["coef"], GOLD["coef"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found["standard_error"], GOLD["bse"], rtol=1e-6)
    assert found["log_likelihood"] == pytest.approx(GOLD["llf"], rel=1e-10)
    assert found.score(WHOLE) == pytest.approx(GOLD["concordance"], abs=1e-12)  # lifelines 0.30.3, concordance_index


def test_curves_and_the_log_rank_test_are_those_of_lifelines() -> None:
    # lifelines 0.30.3: KaplanMeierFitter (survival at times 5, 14, 30; median) and logrank_test, by arm
    found = fit(KaplanMeier(by="arm"))
    assert found["groups"].tolist() == ["A", "B"]
    places = np.searchsorted(found["times"], [5, 14, 30], side="right") - 1
    np.testing.assert_allclose(found["survival"][:, places], GOLD["survival"], rtol=1e-12)
    assert found["median"].tolist() == GOLD["median"]
    assert (found["logrank"], found["p_value"]) == (pytest.approx(GOLD["logrank"]), pytest.approx(GOLD["p_value"]))
    assert found.score(WHOLE) == 0
    agreed = fit(KaplanMeier(by="arm", times=EVENTS.tolist()), categories={"arm": ["A", "B"]}, **SECURE)
    assert agreed["survival"].tolist() == found["survival"].tolist()


def test_the_tail_of_chi_squared() -> None:
    from scipy.stats import chi2

    from atoll.fitting.methods.kaplan_meier import _tail

    for freedom in (1, 2, 3, 6, 7):
        for value in (0.0, 0.3, 4.0, 30.0):
            assert _tail(value, freedom) == pytest.approx(chi2.sf(value, freedom), rel=1e-9)


@pytest.mark.parametrize("model", [KaplanMeier(width=5.0), Cox(width=5.0)], ids=["curve", "cox"])
def test_on_a_grid_events_are_rounded_up_and_the_rest_down(model: Any) -> None:
    found = fit(model)
    event = WHOLE.event == 1
    rounded = WHOLE.assign(time=np.where(event, np.ceil(WHOLE.time / 5) * 5, np.floor(WHOLE.time / 5) * 5))
    pooled = fit(type(model)(), {"all": rounded})
    for name in ("survival", "at_risk") if isinstance(model, KaplanMeier) else ("coef", "log_likelihood"):
        np.testing.assert_allclose(found[name], pooled[name], rtol=1e-9)


def test_a_minimum_count_lets_no_party_tell_of_few_rows() -> None:
    from atoll.fitting.method import Known
    from atoll.fitting.rows import FeatureLayout, rows_of

    model = KaplanMeier(width=5.0)
    layout = FeatureLayout(extra=("time", "event"))
    state = {"phase": "counts", "grid": np.arange(5.0, 120.0, 5.0), "groups": ["all"]}
    rows = rows_of(PARTIES["north"], layout, "north", least=6)
    told = model.reply(rows, state, AtParty(np.random.default_rng(0), None))
    counts = told["counts"]
    assert ((counts == 0) | (counts >= 6)).all()
    assert counts.sum() + told["left_out"] <= 80
    assert told["moved"] > 0
    bare = model.reply(rows_of(PARTIES["north"], layout, "north"), state, AtParty(np.random.default_rng(0), None))[
        "counts"
    ]
    assert ((bare > 0) & (bare < 6)).any()
    last = int(np.flatnonzero(counts[0, 0])[-1])
    assert (np.cumsum(counts[0, 0])[:last] <= np.cumsum(bare[0, 0])[:last]).all()  # later, but for the last few
    found = fit(model, min_count=6)
    assert found["moved"] > 0
    assert abs(found["survival"][0, 3] - fit(KaplanMeier(width=5.0))["survival"][0, 3]) < 0.1
    assert Known(layout, np.random.default_rng(0)).features == 0


def test_noise_is_as_large_as_it_says_and_charged() -> None:
    job = Fit(model=KaplanMeier(times=[10, 20, 40, 80], epsilon=1.0))
    errors = []
    plain = fit(KaplanMeier(times=[10, 20, 40, 80]))["events"]
    for seed in range(15):
        world = World(atoll.data.federated.as_population(PARTIES), ENGINES["inline"](1), secret_seed=seed)
        prepared = job.prepare(None)
        world.registry.update({task.name: task for task in prepared.tasks})
        found = run_in(world, prepared.program)[0]
        errors += (found["events"] - plain)[0, :2].tolist()  # the large counts: none is cut off at 0
    std = noise_std(rate_of(1.0, 1)) * math.sqrt(3)
    assert 0.6 * std < np.std(errors) < 1.5 * std
    assert found["noise_std"] == pytest.approx(std / math.sqrt(3))
    told = [line for line in world.ledger or () if line["kind"] == "laplace"]
    assert [(line["unit"], line["epsilon"]) for line in told] == [("example", 1.0)] * 3


def test_a_site_that_demands_a_minimum_count_is_asked_for_it() -> None:
    ten = {"south": SitePolicy(min_count=10)}
    job = Fit(model=KaplanMeier(width=5.0), min_count=1)
    with pytest.raises(AtollError, match="min_count=1, but this site requires at least 10 rows"):
        atoll.simulate(job, PARTIES, engine="inline", policy=ten)
    explicit, taken = (
        atoll.simulate(Fit(model=KaplanMeier(width=5.0), min_count=least), PARTIES, engine="inline", policy=ten).outcome
        for least in (10, None)
    )
    assert taken.plain() == explicit.plain()


@pytest.mark.parametrize(
    ("model", "settings", "error", "match"),
    [
        (Cox(), SECURE, ConfigError, "times of single rows would be told"),
        (KaplanMeier(width=5.0), SECURE, ConfigError, "each party's times would be told"),
        (KaplanMeier(), {"min_count": 5}, ConfigError, r"times of single rows .*or give width"),
        (KaplanMeier(time="day"), {}, DataError, "no column 'day'"),
        (KaplanMeier(event="a"), {}, DataError, "column 'a' has .*neither 0 nor 1"),
        (KaplanMeier(times=[5, 10], epsilon=1.0, by="arm"), {}, CompositionError, "the values of 'arm' are not known"),
        (KaplanMeier(width=5.0), {"min_count": 79}, DataError, "no party tells of an event"),
    ],
)
def test_what_cannot_be_is_refused(model: Any, settings: dict[str, Any], error: type[AtollError], match: str) -> None:
    with pytest.raises(error, match=match):
        fit(model, **settings)


@pytest.mark.parametrize(
    ("kind", "settings", "match"),
    [
        (Cox, {"ties": "exact"}, "ties='exact'"),
        (Cox, {"alpha": -1.0}, "alpha=-1.0"),
        (Cox, {"width": -1.0}, "width=-1.0"),
        (KaplanMeier, {"times": [3, 2]}, "times that do not ascend"),
        (KaplanMeier, {"times": [3], "width": 1.0}, "times that do not ascend, or width beside them"),
        (KaplanMeier, {"epsilon": 1.0}, "epsilon without times"),
        (KaplanMeier, {"epsilon": -1.0}, "epsilon=-1.0"),
    ],
)
def test_settings_out_of_range_are_named(kind: Any, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        kind(**settings)


def test_a_curve_predicts_no_row_and_scikit_learn_has_none() -> None:
    found = fit(KaplanMeier())
    with pytest.raises(CompositionError, match="does not predict rows"):
        found.predict(WHOLE)
    with pytest.raises(CompositionError, match="scikit-learn has no estimator for KaplanMeier"):
        found.estimator()
    risk = fit(Cox()).predict(WHOLE)
    assert risk.shape == (180,)
    assert (risk > 0).all()


GOLD: dict[str, Any] = {
    "coef": [0.3621516443860668, -0.22875621213753364, 0.15439750507384725],
    "bse": [0.09987108511168649, 0.09657378491852524, 0.10191402111872257],
    "llf": -493.58205881239905,
    "concordance": 0.6169207022959676,
    "survival": [
        [0.7261179621679064, 0.4514290653578169, 0.2048265393669256],
        [0.7299143795449217, 0.49770532980921933, 0.15069576747363478],
    ],
    "median": [11.0, 14.0],
    "logrank": 0.0018825877200066862,
    "p_value": 0.9653916078544517,
}


def test_rows_without_an_event_are_refused_by_what_is_true_of_them() -> None:
    """Nobody's count hides an event where none is: the remedy names the column, and not min_count."""
    gone = pd.DataFrame({"time": [1.0, 2.0, 2.0, 5.0], "event": 0, "age": [50.0, 60.0, 55.0, 70.0]})
    for model, columns in ((KaplanMeier(), None), (Cox(), ["age"])):
        job = Fit(model=model) if columns is None else Fit(model=model, columns=columns)
        with pytest.raises(DataError, match="column 'event' has no 1") as refused:
            atoll.simulate(job, {"north": gone, "south": gone[:3]}, engine="inline", progress=False)
        assert "min_count" not in refused.value.remedy


def test_a_grid_without_an_event_is_no_separation() -> None:
    rows = pd.DataFrame({"time": [1.0, 2.0, 2.0, 5.0] * 3, "event": 0, "age": np.arange(12) * 1.3})
    late = rows.assign(event=(rows.time == 5.0).astype(int))
    for table, times in ((rows, [2.0, 6.0]), (late, [1.0, 2.0])):
        with pytest.raises(DataError, match="no event is at a time of the grid"):
            atoll.simulate(Fit(model=Cox(times=times), columns=["age"]), {"north": table, "south": table[:7]}, engine="inline", progress=False)  # fmt: skip
