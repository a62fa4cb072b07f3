"""What a split network tells: attacks on labels and columns, with and without defences.

Source: the survey of federated models, methods and privacy, table of methods against inference: Sun et al. 2021, "Defending against Reconstruction Attack in Vertical Federated Learning", three
modules at the hosts; for labels Li et al. 2021, "Label Leakage and Protection in Two-party Split Learning". The survey prints no numbers. The targets for labels are our own: what the attack finds
without a defence, what it may find with `MaxNorm`, and what that may cost.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import atoll
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.secure.psi import Oprf
from atoll.vertical import IsotropicNoise, MaxNorm, SplitNet, SunModules, Vertical, read_leaks

__all__ = ["ENTRY"]

_LABELS, _COLUMNS = "Labels, which hosts must not learn", "Columns, which the guest must not learn: Sun et al."
_ROWS = 12_000
_MODULES = {
    "no module": None,
    "reconstruction alone": SunModules(reconstruction=1.0, noise=0.0, distance=0.0),
    "noise alone": SunModules(reconstruction=0.0, noise=1.0, distance=0.0),
    "distance correlation alone": SunModules(reconstruction=0.0, noise=0.0, distance=1.0),
    "all three": SunModules(reconstruction=1.0, noise=1.0, distance=1.0),
}
_QUICK = ("no module", "distance correlation alone", "all three")
_DEFENCES = {"bare": [], "MaxNorm": [MaxNorm()], "IsotropicNoise(1)": [IsotropicNoise(1.0)]}


def _parties(quick: bool) -> tuple[dict[str, Any], str]:
    """A bank with labels and a shop: of drawn people, or of `default_credit`, the first rows."""
    if not quick:
        bank, shop = atoll.data.fate_vertical("default_credit")
        known = np.isin(np.asarray(shop["id"]), np.asarray(bank["id"])[:_ROWS])
        few = bank.take(np.arange(_ROWS)), shop.take(np.flatnonzero(known))
        return dict(zip(("bank", "shop"), few, strict=True)), f"default_credit, the first {_ROWS:,} rows"
    rng = np.random.default_rng(3)
    x = rng.normal(size=(700, 8))
    y = (x.sum(axis=1) + rng.normal(size=700) > 2).astype(int)
    drawn = {"id": np.arange(700), **{f"a{i}": x[:, i] for i in range(4)}, "y": y}
    return {"bank": drawn, "shop": {"id": np.arange(700), **{f"b{i}": x[:, 4 + i] for i in range(4)}}}, "700 drawn rows"


def _train(parties: dict[str, Any], quick: bool, seed: int, **settings: Any) -> dict[str, float]:
    """What attacks find, and the measure of the held-out rows."""
    model = SplitNet(epochs=4 if quick else 5, rate=0.01 if quick else 0.003, seed=seed, **settings)
    job = Vertical(model=model, align=Oprf(), order=seed)
    found: Any = atoll.simulate(job, parties, engine="inline", progress=False, secret_seed=seed).outcome
    return {**read_leaks(found), "AUC": found.scores["test/federated/auc"]}


def _mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}


@keeping_nothing("vertical-leaks")
def _run(quick: bool) -> list[Claim]:
    parties, what = _parties(quick)
    return [*_labels(parties, what, quick), *_columns(parties, what, quick)]


def _labels(parties: dict[str, Any], what: str, quick: bool) -> list[Claim]:
    seeds = 1 if quick else 3
    attacks = ("norm", "direction", "completion")
    by = {
        name: _mean([_train(parties, quick, seed, audit=attacks, defence=defence) for seed in range(seeds)])
        for name, defence in list(_DEFENCES.items())[: 2 if quick else 3]
    }
    where = f"{what}; means of {seeds} seed{'s' * (seeds > 1)}; area under the curve of labels"
    made = [
        Claim.figure(f"{name}: {attack}", value, where if attack != "AUC" else f"the model's own AUC of held-out rows; {what}", _LABELS)
        for name, found in by.items() for attack, value in found.items()
    ]  # fmt: skip
    bare, hidden = by["bare"], by["MaxNorm"]
    lost, most = round(bare["AUC"] - hidden["AUC"], 4), 0.85 if quick else 0.65
    return [
        *made,
        Claim("without a defence the direction of gradients tells labels", "at least .95", bare["direction"], bare["direction"] >= 0.95, where, _LABELS),
        Claim("with MaxNorm it hardly does", f"at most {most:g}", hidden["direction"], hidden["direction"] <= most, where, _LABELS),
        Claim("MaxNorm costs little of the model's AUC", "at most .015", lost, None if quick else lost <= 0.015, where + ("; 700 rows decide nothing" if quick else ""), _LABELS),
    ]  # fmt: skip


def _columns(parties: dict[str, Any], what: str, quick: bool) -> list[Claim]:
    seeds = 1 if quick else 2
    by = {
        name: _mean([
            _train(parties, quick, seed, audit=("inversion",), defence=[] if one is None else [one])
            for seed in range(seeds)
        ])
        for name, one in _MODULES.items() if not quick or name in _QUICK
    }  # fmt: skip
    where = f"{what}; means of {seeds} seed{'s' * (seeds > 1)}; share of the host's columns' variance that the guest reconstructs"
    made = [
        Claim.figure(f"{name}: {'inversion' if key == 'inversion' else 'AUC'}", value, where if key == "inversion" else f"the model's own AUC; {what}", _COLUMNS)
        for name, found in by.items() for key, value in found.items()
    ]  # fmt: skip
    bare = by["no module"]["inversion"]
    for name, found in list(by.items())[1:]:
        made.append(
            Claim(f"what the guest reconstructs falls: {name}", f"below {bare:g}", found["inversion"], found["inversion"] < bare, where, _COLUMNS)
        )  # fmt: skip
    return made


ENTRY = Entry(
    name="vertical-leaks",
    title="Leaks of a split network: attacks on labels and columns, and defences",
    source="the survey of federated models, methods and privacy: Sun et al. 2021; Li et al. 2021",
    run=_run,
    needs="FATE's default_credit below ATOLL_DATA; nothing with --quick",
    data=("fate_vertical:default_credit",),
    quick_data=(),
)
