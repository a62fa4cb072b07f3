"""What mistakes of an alignment cost a linear model: rows joined to others' of the same class, and of the other class; and records paired by encodings of their names.

Source: the thesis (SAFA), section 2.3.3: "errors (especially cross-class mismatching) in entity alignment can have a big impact on the models to be learnt", of Nock et al. 2018, "Entity Resolution and
Federated Learning get a Federated Resolution", who analyse the model of Hardy et al. 2017. The thesis prints no numbers; the targets are our own.

Nock et al. write mistakes as a permutation of one party's rows. Theirs are statements about Taylor's loss ``log 2 - m / 2 + m^2 / 8`` of margins ``m = y w.x`` (labels -1 and 1): its first term is the *mean operator* ``sum_i y_i x_i``,
which rows that change places within their class leave as it is; and large margins keep their sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import atoll
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.secure.psi import Linkage, order_keys
from atoll.trees.objectives import LOGISTIC, TreeLoss
from atoll.trees.tree import score
from atoll.vertical import SecureBoost, Vertical, VerticalLinear, train_pooled
from atoll.vertical.model import GuestRows, VerticalModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ENTRY"]

_SWAPS, _LINKS = "Rows joined to others", "Records paired by their names"
_CASES = (("across", 0.18), ("within", 0.18), ("within", 0.4))


@dataclass(frozen=True)
class _Rows:
    """Shared rows in one order: the columns of guest and host, labels 0 and 1."""

    names: list[str]
    guest: NDArray[np.float64]
    host: NDArray[np.float64]
    y: NDArray[np.float64]


def _credit() -> _Rows:
    """`default_credit`, its rows joined by their ids."""
    bank, shop = atoll.data.fate_vertical("default_credit")
    parts = [dict(zip(map(str, part["id"]), part["x"], strict=True)) for part in (bank, shop)]
    labels = dict(zip(map(str, bank["id"]), bank["y"], strict=True))
    names = sorted(parts[0])
    x = [np.array([part[name] for name in names], np.float64) for part in parts]
    return _Rows(names, x[0], x[1], np.array([labels[name] for name in names], np.float64))


def _drawn(rows: int, seed: int = 0) -> _Rows:
    """Columns of both parties, which go together, and two classes of unequal size."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 8))
    x[:, 4:] += 0.3 * x[:, :4]
    y = (x @ np.array([-0.8, 0.6, 0, 0.5, 1.2, -1.0, 0.6, 0]) + rng.logistic(size=rows) > 1.5).astype(np.float64)
    return _Rows([f"person-{i}" for i in range(rows)], x[:, :4], x[:, 4:], y)


def swap_partners(y: NDArray[np.float64], share: float, kind: str, rng: np.random.Generator) -> NDArray[np.int64]:
    """The host's row that each row is joined to: a share of the rows have another one, of the same class (``within``) or of the other (``across``)."""
    partner, wanted = np.arange(len(y)), round(share * len(y))
    if kind == "across":
        one, other = (rng.permutation(np.flatnonzero(y == c))[: wanted // 2] for c in (0, 1))
        partner[one], partner[other] = other, one
        return partner
    some = rng.permutation(len(y))[:wanted]
    for c in (0, 1):
        mine = some[y[some] == c]
        partner[mine] = np.roll(mine, 1)
    return partner


def _fit(model: VerticalModel, rows: _Rows, train: NDArray[np.bool_], partner: NDArray[np.int64]) -> tuple[float, Any]:
    """The AUC of held-out rows, which are joined rightly, of a model of training rows that are not; and their margins."""
    loss, cast = TreeLoss(LOGISTIC), model.precision
    guest, host = rows.guest.astype(cast), rows.host.astype(cast)
    columns = (guest.shape[1], host.shape[1])
    x = np.concatenate([guest[train], host[train][partner]], axis=1)
    part = model.train_pooled(GuestRows(x, rows.y[train], loss, columns))
    margins = model.margins(part, np.concatenate([guest[~train], host[~train]], axis=1), [])
    return score(loss, rows.y[~train], loss.predict(margins))[1], margins[:, 0]


def _mean_operator(rows: _Rows, train: NDArray[np.bool_], partner: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray((2 * rows.y[train] - 1) @ rows.host[train][partner])


def _swapped(quick: bool) -> list[Claim]:
    rows = _drawn(4000) if quick else _credit()
    size = f"{len(rows.y):,} rows, {'drawn' if quick else 'default_credit'}, a quarter held out"
    seeds = range(2 if quick else 5)
    models: dict[str, VerticalModel] = {
        "logistic regression": VerticalLinear(security="none"), "Taylor's loss": VerticalLinear(security="pair")
    }  # fmt: skip
    lost: dict[Any, list[float]] = {}
    moved: dict[str, list[float]] = {"within": [], "across": []}
    flips: list[tuple[float, ...]] = []
    for seed in seeds:
        train = order_keys(rows.names, seed).astype(np.float64) / 2.0**64 >= 0.25
        rng, right = np.random.default_rng(seed), np.arange(int(train.sum()))
        clean = {name: _fit(model, rows, train, right) for name, model in models.items()}
        for kind, share in _CASES:
            partner = swap_partners(rows.y[train], share, kind, rng)
            before, after = (_mean_operator(rows, train, each) for each in (right, partner))
            moved[kind].append(float(np.abs(after - before).max() / np.abs(before).max()))
            for name, model in models.items():
                auc, margins = _fit(model, rows, train, partner)
                lost.setdefault((name, kind, share), []).append(clean[name][0] - auc)
                if (name, kind, share) == ("Taylor's loss", "within", 0.4):
                    flips.append(_flipped(clean[name][1], margins))
    return [*_judge_lost(lost, models, f"mean of {len(seeds)} seeds of the split and of the swaps; {size}"), *_judge_moved(moved, flips, size)]  # fmt: skip


def _judge_lost(lost: Any, models: Any, size: str) -> list[Claim]:
    claims = []
    for name in models:
        mean = {case: float(np.mean(lost[name, *case])) for case in _CASES}
        off = {case: float(np.std(lost[name, *case])) for case in _CASES}
        words = {case: f"{mean[case]:.4f} ± {off[case]:.4f}" for case in _CASES}
        across, within = ("across", 0.18), ("within", 0.4)
        claims += [
            Claim(f"{name}: 18 % of the training rows joined across classes cost AUC", "about .018", words[across], mean[across] >= 0.005, f"at least .005; {size}", _SWAPS),
            Claim(f"{name}: 40 % joined within classes cost next to nothing", "about .001", words[within], mean[within] <= 0.005, f"at most .005; {size}", _SWAPS),
            Claim(f"{name}: mistakes across classes cost more than as many within", None, f"{words[across]}; within {words['within', 0.18]}",
                  mean[across] >= 4 * max(mean["within", 0.18], 0.0), f"four times as much, 18 % of the rows each; {size}", _SWAPS),
        ]  # fmt: skip
    return claims


def _judge_moved(moved: Any, flips: Any, size: str) -> list[Claim]:
    all_, half, large = (float(np.max([one[i] for one in flips])) for i in range(3))
    return [
        Claim("the mean operator is the same whoever is joined within classes", "equal", f"{max(moved['within']):.1e}", max(moved["within"]) < 1e-9, "largest change of an entry, by the largest entry", _SWAPS),
        Claim("and another one across classes", None, f"{min(moved['across']):.2f}", min(moved["across"]) > 0.1, "the same measure, at least .1", _SWAPS),
        Claim("large margins keep their sign", "none changes", f"{large:.4f} of the largest quarter, {half:.4f} of the larger half, {all_:.4f} of all", large == 0,
              f"held-out rows whose class changes with 40 % joined within classes, the most of all seeds; Taylor's loss; margins from their median; {size}", _SWAPS),
    ]  # fmt: skip


def _flipped(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[float, ...]:
    """The share of rows whose margin is on the other side of the median; of all, of the half that is farthest from it, and of the quarter."""
    one, other = before - np.median(before), after - np.median(after)
    changed = (one > 0) != (other > 0)
    return tuple(float(changed[np.abs(one) >= np.quantile(np.abs(one), least)].mean()) for least in (0, 0.5, 0.75))


def _boosted(quick: bool) -> list[Claim]:
    """Trees, which Nock et al. say nothing of."""
    if quick:
        return []
    rows, model = _credit(), SecureBoost(security="none")
    train = order_keys(rows.names, 0).astype(np.float64) / 2.0**64 >= 0.25
    clean = _fit(model, rows, train, np.arange(int(train.sum())))[0]
    lost = {
        case: clean - _fit(model, rows, train, swap_partners(rows.y[train], case[1], case[0], np.random.default_rng(0)))[0]
        for case in _CASES
    }  # fmt: skip
    told = "; ".join(f"{share:.0%} {kind} classes: {each:.4f}" for (kind, share), each in lost.items())
    return [Claim.figure("AUC that boosted trees lose (20 of depth 3)", told, "seed 0", _SWAPS)]


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _people(count: int, rng: np.random.Generator) -> list[str]:
    """Names of two words, of few words, so that some people have the same."""
    syllables = [a + b for a in "bdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er")]
    first, last = (["".join(rng.choice(syllables, 3)) for _ in range(many)] for many in (30, 60))
    return [f"{a} {b}" for a, b in zip(rng.choice(first, count), rng.choice(last, count), strict=True)]


def _misspell(name: str, rng: np.random.Generator) -> str:
    """Another letter in one place."""
    at = int(rng.integers(len(name)))
    return f"{name[:at]}{rng.choice(list(_LETTERS))}{name[at + 1 :]}"


def _linked(quick: bool) -> list[Claim]:
    count, shared = (500, 400) if quick else (2400, 2000)
    rng, rows = np.random.default_rng(3), _drawn(count, seed=3)
    names, born = _people(count, rng), [str(year) for year in rng.integers(1940, 2005, count)]
    spelt = [_misspell(name, rng) if rng.random() < 0.3 else name for name in names]
    order = rng.permutation(np.arange(count - shared, count))  # the shop has these, in an order of its own
    bank, shop = np.arange(shared), order
    said = {
        "bank": {"name": [names[i] for i in bank], "born": [born[i] for i in bank]},
        "shop": {"name": [spelt[i] for i in shop], "born": [born[i] for i in shop]},
    }
    job = Linkage(columns=["name", "born"], blocking=["born:3"], threshold=0.75, show=True)
    pairs = atoll.simulate(job, said, engine="inline", progress=False).outcome.pairs
    right = {(int(i), int(np.flatnonzero(shop == i)[0])) for i in np.intersect1d(bank, shop)}
    good = sum((a, b) in right for a, b in pairs)
    found = _train_pairs(rows, bank, shop, pairs)
    exact = _train_pairs(rows, bank, shop, sorted(right))
    size = f"{len(right):,} people at both of two parties with {shared:,} records, 3 of 10 names misspelt at one"
    return [
        Claim("encodings pair records that are written in two ways", None, f"{good / len(pairs):.3f} of the pairs, {good / len(right):.3f} of the people", good >= 0.9 * max(len(pairs), len(right)),
              f"at least .9 of both; equal names are {sum(names[i] == spelt[i] for i in np.intersect1d(bank, shop)) / len(right):.3f}; {size}", _LINKS),
        Claim("a linear model of paired records is as good as one of keys", "AUC within .02", f"{exact[0] - found[0]:.4f}", exact[0] - found[0] <= 0.02, f"keys: {exact[0]:.4f}; {size}", _LINKS),
        Claim("the joint model is that of all columns in one place, mistakes and all", "at most 1e-8", max(found[1], exact[1]), max(found[1], exact[1]) <= 1e-8, f"largest difference of a probability; {size}", _LINKS),
    ]  # fmt: skip


def _train_pairs(rows: _Rows, bank: Any, shop: Any, pairs: Any) -> tuple[float, float]:
    """The AUC, on people whom both truly have, of a model of paired records; and its largest difference to the pooled one."""
    mine, theirs = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    tables = {
        "bank": {"id": np.arange(len(mine)), "y": rows.y[bank[mine]].astype(np.int64), **{f"a{j}": rows.guest[bank[mine], j] for j in range(4)}},
        "shop": {"id": np.arange(len(mine)), **{f"b{j}": rows.host[shop[theirs], j] for j in range(4)}},
    }  # fmt: skip
    job = Vertical(model=VerticalLinear(security="none"), test=0.0)
    found = atoll.simulate(job, tables, engine="inline", progress=False)
    gap = float(np.abs(found.predictions["federated"] - train_pooled(job, tables, found.outcome)).max())
    fresh = _drawn(4000, seed=4)  # people of whom nobody has learned
    asked = {
        "bank": {"id": np.arange(4000), **{f"a{j}": fresh.guest[:, j] for j in range(4)}},
        "shop": {"id": np.arange(4000), **{f"b{j}": fresh.host[:, j] for j in range(4)}},
    }
    return score(TreeLoss(LOGISTIC), fresh.y, found.predict(asked)[:, None])[1], gap


@keeping_nothing("vertical-alignment")
def _run(quick: bool) -> list[Claim]:
    return [*_swapped(quick), *_boosted(quick), *_linked(quick)]


ENTRY = Entry(
    name="vertical-alignment",
    title="Mistakes of an alignment: rows joined to others, and records paired by their names",
    source="the thesis, section 2.3.3: Nock et al. 2018, of Hardy et al. 2017",
    run=_run,
    needs="FATE's `default_credit` below ATOLL_DATA; nothing with --quick",
    data=("fate_vertical:default_credit",),
    quick_data=(),
)
