"""Models beside slow references that are written from the papers, closed forms, and crowd-kit 1.4.2, whose numbers stand here: with what it brings along it is no part of the tests' environment."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.truth import (
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
    read_hierarchy,
    reports_of,
    score_labels,
)
from atoll.truth.models.mace import _digamma


def rows() -> list[tuple[str, str, str]]:
    """144 reports of 8 workers on 24 tasks, without random numbers."""
    made = []
    for t in range(24):
        for w in range(8):
            if (5 * t + 3 * w) % 4:
                right = (7 * t + 11 * w + w * t % 5) % (w % 4 + 2)
                made.append((f"t{t:02}", f"w{w}", f"c{t % 3 if right else (t % 3 + 1 + w % 2) % 3}"))
    return made


TRUTH = {f"t{t:02}": f"c{t % 3}" for t in range(24)}
FRAME = pd.DataFrame(rows(), columns=["task", "worker", "label"])


# ------------------------------------------------------------------ crowd-kit 1.4.2 on these rows


def test_dawid_skene_is_crowd_kits_after_four_iterations() -> None:
    """``DawidSkene(4, tol=-1e9)``, which raises tiny probabilities to 1e-10 in its result."""
    model = DawidSkene(iterations=4, tolerance=0)
    labels = model.fit_predict(FRAME)
    assert labels.index.tolist() == list(dict.fromkeys(FRAME.task))
    assert (labels.index.name, labels.name) == ("task", "agg_label")
    assert labels["t02"] == "c2"
    expected = [[1, 1e-10, 1e-10], [1e-10, 1, 1e-10], [1e-10, 0.006470074938550697, 0.9935299250614492]]
    np.testing.assert_allclose(model.probas_.loc[["t00", "t01", "t02"], ["c0", "c1", "c2"]], expected, atol=1e-8)
    assert model.priors_.tolist() == pytest.approx([0.3333333333333333, 0.33360291977039935, 0.3330637468962673])
    errors = [[2 / 3, 0, 1 / 6], [1 / 3, 0.8333333333132498, 0], [0, 0.16666666667008356, 0.8333333333182055]]
    np.testing.assert_allclose(model.errors_.loc["w2"], errors, atol=1e-9)
    assert model.errors_.index.names == ["worker", "label"]


def test_one_coin_is_crowd_kits_after_four_iterations() -> None:
    model = OneCoin(iterations=4, tolerance=0)
    model.fit(FRAME)
    expected = [[0.9999989020002981, 6.117777907673821e-07, 4.862219111477731e-07], [3.689781997372313e-06, 0.9999930492194614, 3.2609985413633054e-06], [0.004499442616047713, 0.9035665626261373, 0.09193399475781504]]  # fmt: skip
    np.testing.assert_allclose(model.probas_.iloc[:3], expected, atol=1e-12)
    skills = [0.6659101027488619, 0.8826543061466885, 0.777113945463379, 0.9476814026060185, 0.5597602116732607, 0.715731204875834, 0.8332004246928596, 0.8264956709111426]  # fmt: skip
    assert model.skills_.sort_index().tolist() == pytest.approx(skills, abs=1e-12)


def test_glad_and_mace_find_what_crowd_kit_finds() -> None:
    """``GLAD(n_iter=50)``, whose conjugate gradients end at a tolerance of 1e-2, and ``MACE(n_restarts=1)``: 23 of 24 tasks, and nearly the same abilities."""
    model = GLAD()
    model.fit(FRAME)
    abilities = [0.497845, 1.134217, 0.444312, 1.456449, 0.208335, 0.357436, 0.667009, 0.726363]
    assert model.skills_.sort_index().tolist() == pytest.approx(abilities, abs=0.01)
    eases = [1.657693355541512, 1.7557098468932384, -0.03789701848702823, 1.0825440019987234]
    assert model.fitted.broadcast["ease"][:4] == pytest.approx(eases, abs=0.01)
    assert score_labels(model.fitted.by_task(), TRUTH) == pytest.approx(23 / 24)
    mace = MACE().fit(FRAME)
    assert mace.probas_.iloc[2].tolist() == pytest.approx([0.005837, 0.840929, 0.153233], abs=0.03)
    knowing = np.array([0.799099272, 0.652913823, 0.901722321, 0.564604134, 0.73257878, 0.714530934, 0.493197213, 0.34626417])  # fmt: skip
    assert mace.skills_[["w1", "w2", "w3", "w5", "w6", "w7", "w0", "w4"]].tolist() == pytest.approx(knowing, abs=0.04)
    assert score_labels(mace.fitted.by_task(), TRUTH) == pytest.approx(23 / 24)


def test_a_fit_is_stationary() -> None:
    """GLAD's gradients vanish at its end: those of the likelihood with normal priors, differentiated numerically."""
    model = GLAD(iterations=400, tolerance=0).fit(reports_of(rows()))
    fit = model.fitted
    truth, reports = fit.broadcast["truth"], fit.reports

    def objective(ability: np.ndarray, ease: np.ndarray) -> float:
        logit = ability[reports.worker] * np.exp(ease)[reports.task]
        said = truth[reports.cell]
        wrong = -np.logaddexp(0, logit) - math.log(2)
        logs = said * -np.logaddexp(0, -logit) + (1 - said) * wrong
        return float(logs.sum() - ((ability - 1) ** 2).sum() / 2 - ((ease - 1) ** 2).sum() / 2)

    ability, ease = fit.state["ability"], fit.broadcast["ease"]
    for values, at in ((ability, 2), (ability, 4), (ease, 0), (ease, 2)):
        step = np.zeros_like(values)
        step[at] = 1e-5
        pair = [(ability + s, ease) if values is ability else (ability, ease + s) for s in (step, -step)]
        assert abs(objective(*pair[0]) - objective(*pair[1])) / 2e-5 < 1e-5


def test_digamma_is_scipys() -> None:
    from scipy.special import digamma

    x = np.concatenate([np.logspace(-3, 6, 40), [0.5, 1.0, 9.999, 10.0]])
    np.testing.assert_allclose(_digamma(x), digamma(x), rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------ slow references


def test_dawid_skene_is_the_paper_loop_by_loop() -> None:
    said = rows()
    tasks, workers, classes = (sorted({row[k] for row in said}) for k in range(3))
    truth = {t: {c: sum(r[0] == t and r[2] == c for r in said) / sum(r[0] == t for r in said) for c in classes} for t in tasks}  # fmt: skip
    for _ in range(4):
        prior = {c: sum(truth[t][c] for t in tasks) / len(tasks) for c in classes}
        errors = {}
        for w in workers:
            for c in classes:
                counts = {one: max(sum(truth[t][c] for t, v, x in said if v == w and x == one), 1e-10) for one in classes if any(v == w and x == one for _, v, x in said)}  # fmt: skip
                errors |= {(w, one, c): count / sum(counts.values()) for one, count in counts.items()}
        for t in tasks:
            product = {c: prior[c] * math.prod(errors[w, x, c] for u, w, x in said if u == t) for c in classes}
            truth[t] = {c: product[c] / sum(product.values()) for c in classes}
    found = DawidSkene(iterations=4, tolerance=0).fit(said).probas_
    for t in tasks:
        assert found[t] == pytest.approx(truth[t], abs=1e-6)


@pytest.mark.parametrize("logistic", [False, True])
def test_sum_and_logistic_are_the_paper_loop_by_loop(logistic: bool) -> None:
    """Equations 12, 13, 18 and 19 for binary events."""
    said = [(t, w, "10"[label == "c0"]) for t, w, label in rows()]
    tasks, workers = (sorted({row[k] for row in said}) for k in range(2))
    tau, rho = dict.fromkeys(workers, 0.9), dict.fromkeys(tasks, 0.5)
    for _ in range(5):
        for t in tasks:
            yes, no = ([tau[w] for u, w, x in said if u == t and x == one] for one in "10")
            if logistic:
                star = sum(-math.log(1 - v) for v in yes) - sum(-math.log(1 - v) for v in no)
                rho[t] = rho[t] if star == 0 else 1 / (1 + math.exp(-star))
            else:
                rho[t] = sum(yes) / (sum(yes) + sum(no))
        for w in workers:
            agreed = [rho[t] if x == "1" else 1 - rho[t] for t, v, x in said if v == w]
            tau[w] = min(max(sum(agreed) / len(agreed), 1e-3), 1 - 1e-3)
    model = (Logistic if logistic else WeightedSum)(iterations=5, tolerance=0).fit(said)
    assert {t: row["1"] for t, row in model.probas_.items()} == pytest.approx(rho, abs=1e-9)
    assert model.skills_ == pytest.approx(tau, abs=1e-9)


def test_crh_is_the_paper_loop_by_loop() -> None:
    rng = np.random.default_rng(2)
    spread = [0.1, 0.2, 0.1, 6.0, 0.3]
    said = [(f"t{t}", f"w{w}", str(round(10 * t + s * rng.normal(), 4))) for t in range(5) for w, s in enumerate(spread) if (t + w) % 3]  # fmt: skip
    tasks, workers = (sorted({row[k] for row in said}) for k in range(2))
    weight = dict.fromkeys(workers, 1.0)
    for _ in range(7):
        truth = {t: sum(weight[w] * float(x) for u, w, x in said if u == t) / sum(weight[w] for u, w, _ in said if u == t) for t in tasks}  # fmt: skip
        loss = {w: np.mean([(truth[t] - float(x)) ** 2 for t, v, x in said if v == w]) for w in workers}
        weight = {w: math.log(sum(loss.values())) - math.log(loss[w]) for w in workers}
    model = CRH(iterations=6, tolerance=0, delta=1e-12)
    assert model.fit_predict(said) == pytest.approx(truth, abs=1e-9)
    before = {t: float(np.mean([float(x) for u, _, x in said if u == t])) for t in tasks}
    assert MeanReport().fit_predict(said) == pytest.approx(before, abs=1e-9)
    assert sum(abs(truth[f"t{t}"] - 10 * t) for t in range(5)) < sum(abs(before[f"t{t}"] - 10 * t) for t in range(5))


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 1e9, -1e9]), st.sampled_from([1.0, 1e-9, 1e9]))
def test_numbers_have_no_offset_and_no_unit(seed: int, offset: float, scale: float) -> None:
    rng = np.random.default_rng(seed)
    said = [(f"t{t}", f"w{w}", float(rng.normal(t, 1 + w))) for t in range(4) for w in range(5) if rng.random() < 0.8]
    said += [("t0", "w9", 0.0), ("t3", "w9", 3.0)]
    moved = [(t, w, offset + scale * x) for t, w, x in said]
    for model in (CRH(), MeanReport(), MedianReport()):
        one, other = model.fit_predict(said), model.fit_predict(moved)
        wanted = {t: offset + scale * x for t, x in one.items()}
        assert other == pytest.approx(wanted, rel=1e-12, abs=1e-5 * scale + 1e-6 * abs(offset) * (scale < 1))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-50, 50)), min_size=1, max_size=25))
def test_the_median_from_sums_is_the_median(values: list[tuple[int, int]]) -> None:
    said = [(f"t{t}", f"w{at}", x) for at, (t, x) in enumerate(values)]
    groups = defaultdict(list)
    for t, _, x in said:
        groups[t].append(x)
    expected = {t: float(np.median(group)) for t, group in groups.items()}
    assert MedianReport().fit_predict(said) == pytest.approx(expected, abs=1e-8)


# ------------------------------------------------------------------ claims with a hierarchy

ABOVE = {"Oslo": ("Norway",), "Bergen": ("Norway",), "Norway": ("Europe",), "Lund": ("Sweden",)}
CLAIMS = pd.DataFrame(
    [
        ("ada", "exact", "Oslo"), ("ada", "coarse", "Norway"), ("ada", "vague", "Norway"),
        ("bo", "exact", "Bergen"), ("bo", "coarse", "Norway"), ("bo", "wrong", "Lund"),
        ("cy", "exact", "Lund"), ("cy", "coarse", "Sweden"), ("cy", "wrong", "Oslo"),
        ("di", "exact", "Oslo"), ("di", "wrong", "Lund"),
        ("ed", "exact", "Rome"), ("ed", "coarse", "Rome"),
    ],
    columns=["obj", "src", "value"],
)  # fmt: skip


def test_a_general_claim_supports_what_it_contains() -> None:
    """Two say Norway and one Oslo: the vote takes the country, and the hierarchy the town."""
    model = TDH(contains=ABOVE)
    found = model.fit_predict(CLAIMS)
    assert found.to_dict() == {"ada": "Oslo", "bo": "Bergen", "cy": "Lund", "di": "Oslo", "ed": "Rome"}
    assert (found.index.name, MajorityVote().fit_predict(CLAIMS)["ada"]) == ("obj", "Norway")
    assert model.skills_["exact"] > model.skills_["wrong"]
    assert model.probas_.sum(axis=1).tolist() == pytest.approx([1.0] * 5)
    assert model.probas_.loc["ed", "Lund"] == 0.0


def test_tdh_is_the_paper_loop_by_loop() -> None:
    said = list(CLAIMS.itertuples(index=False, name=None))
    objects, sources = ({row[k]: 1 for row in said} for k in range(2))
    candidates = {o: sorted({v for u, _, v in said if u == o}) for o in objects}
    phi = {s: [3 / 8, 3 / 8, 2 / 8] for s in sources}
    mu = {o: {v: (sum(u == o and x == v for u, _, x in said) + 1) / (sum(u == o for u, _, _ in said) + len(candidates[o])) for v in candidates[o]} for o in objects}  # fmt: skip
    for turn in range(4):
        kinds, parts = {s: np.array([2.0, 2.0, 1.0]) for s in sources}, []
        for o, s, claim in said:
            likely, at = {}, {}
            for v in candidates[o]:
                general = [c for c in candidates[o] if c in ABOVE.get(v, ())]
                wrong = [c for c in candidates[o] if c != v and c not in general]
                e, g, w = phi[s] if general else (phi[s][0] + phi[s][1], 0.0, phi[s][2])
                e, g, w = np.array([e, g, w * bool(wrong)]) / (e + g + w * bool(wrong))
                at[v] = 0 if claim == v else 1 if claim in general else 2
                likely[v] = [e, g / max(len(general), 1), w / max(len(wrong), 1)][at[v]] * mu[o][v]
            for v in candidates[o]:
                f = likely[v] / sum(likely.values())
                parts.append((o, v, f))
                general = any(c in ABOVE.get(v, ()) for c in candidates[o])
                if at[v] == 0 and not general:
                    kinds[s][:2] += f * np.array(phi[s][:2]) / (phi[s][0] + phi[s][1])
                else:
                    kinds[s][at[v]] += f
        if turn:
            mu = {o: {v: (sum(f for u, x, f in parts if u == o and x == v) + 1) / (sum(u == o for u, _, _ in said) + len(candidates[o])) for v in candidates[o]} for o in objects}  # fmt: skip
        phi = {s: count / count.sum() for s, count in kinds.items()} if not turn else phi
        if turn:
            break
    model = TDH(contains=ABOVE, iterations=1).fit(CLAIMS)
    found = model.fitted.by_task()
    for o in objects:
        assert found[o] == pytest.approx(mu[o], abs=1e-12)


def test_a_hierarchy_is_read_from_lines(tmp_path) -> None:
    path = tmp_path / "hierarchy.csv"
    path.write_text("ID,name,parentID\n0,Root,-1\n1,UK,0\n2,Wales,1\n3,Newport,2\n4,USA,0\n5,Newport,4\n")
    assert read_hierarchy(path) == {"Wales": ("UK",), "Newport": ("UK", "USA", "Wales")}
    path.write_text("ID,name,parentID\n1,a,2\n2,b,1\n")
    with pytest.raises(ValueError, match=r"contains itself.*correct the parents"):
        read_hierarchy(path)
    path.write_text("ID,name\n1,a\n")
    with pytest.raises(ValueError, match=r"no column 'parentID'"):
        read_hierarchy(path)


# ------------------------------------------------------------------ when Dawid and Skene's fit ends


def _fit_by_bound(said: np.ndarray, classes: int, floor: float = 1e-10) -> tuple[np.ndarray, int]:
    """crowd-kit's loops of ``DawidSkene(n_iter=100, tol=1e-5)``, where every worker reports on every task: ``said`` is ``(tasks, workers)``."""
    votes = np.stack([(said == c).mean(axis=1) for c in range(classes)], axis=1)

    def learn(truth: np.ndarray) -> np.ndarray:
        counts = np.array([[truth[said[:, w] == label].sum(axis=0) for label in range(classes)] for w in range(said.shape[1])])  # fmt: skip
        counts = np.maximum(counts, floor)
        return counts / counts.sum(axis=1, keepdims=True)

    truth, priors, errors, before = votes, votes.mean(axis=0), learn(votes), -np.inf
    made = 0
    while made < 100:
        made += 1
        logs = np.log(priors) + sum(np.log(errors[w, said[:, w]]) for w in range(said.shape[1]))
        truth = np.exp(logs - logs.max(axis=1, keepdims=True))
        truth /= truth.sum(axis=1, keepdims=True)
        priors, errors = truth.mean(axis=0), learn(truth)
        reports = sum(np.log(errors[w, said[:, w]]) + np.log(priors) for w in range(said.shape[1]))
        bound = (np.sum(truth * reports) - np.sum(truth * np.log(np.maximum(truth, 1e-10)))) / said.size
        if bound - before < 1e-5:
            break
        before = bound
    return truth, made


@pytest.mark.parametrize("seed", range(3))
def test_dawid_skene_ends_where_crowd_kit_does(seed: int) -> None:
    """On crowds of which little is known, further iterations would move many tasks; the iteration that finds the end keeps the truth."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 3, 60)
    skill = rng.uniform(0.1, 0.6, 9)
    said = np.where(rng.random((60, 9)) < skill, true[:, None], rng.integers(0, 3, (60, 9)))
    table = [(f"t{t:02}", f"w{w}", f"c{said[t, w]}") for t in range(60) for w in range(9)]
    model = DawidSkene().fit(table)
    wanted, made = _fit_by_bound(said, 3)
    assert model.n_iter_ == made + 1
    np.testing.assert_allclose(model.fitted.shares.reshape(60, 3), wanted, atol=1e-6)
    assert DawidSkene(tolerance=0).fit(table).n_iter_ == 100
