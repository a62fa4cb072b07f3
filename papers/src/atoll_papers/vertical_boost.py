"""Boosted trees over columns at several owners: what each part of VF2Boost saves, with 4 owners, and hidden trees of Pivot with 10.

Source: the survey of federated computing lists VF2Boost (Fu et al. 2021) with up to 4 parties and Pivot (Wu et al. 2020) with up to 10, both for boosted trees (table 22). It prints no
numbers of theirs. What both papers say can be checked: no part changes a tree, and each saves time or bytes. The targets are our own.

VF2Boost's parts are streamed encryption, optimistic splits, re-ordered sums and packed histograms. Re-ordered sums keep ciphertexts whose numbers have different exponents apart, so that few
have to be scaled; here all gradients are whole multiples of one unit, and none has to be.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import atoll
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.secure.encrypted import Paillier
from atoll.vertical import Pivot, SecureBoost, Vertical, train_pooled

__all__ = ["ENTRY"]

_BOOST, _PIVOT = "SecureBoost with VF2Boost's parts, 4 owners", "Pivot, 10 owners"


def _parties(owners: int, rows: int) -> dict[str, dict[str, Any]]:
    """Two columns at each owner; the label needs columns of several."""
    rng = np.random.default_rng(22)
    x = rng.normal(size=(rows, 2 * owners))
    signal = x[:, 0] + x[:, 2] * x[:, 1] + x[:, -1] + 0.5 * rng.normal(size=rows)
    made: dict[str, dict[str, Any]] = {}
    for k in range(owners):
        order = rng.permutation(rows)
        made[f"owner-{k}"] = {"id": order, f"a{k}": x[order, 2 * k], f"b{k}": x[order, 2 * k + 1]}
        if k == 0:
            made["owner-0"]["y"] = (signal[order] > 0).astype(np.int64)
    return made


def _train(model: Any, parties: dict[str, Any]) -> tuple[Any, float]:
    """A training, and the processor seconds of all parties."""
    began = time.process_time()
    found = atoll.simulate(Vertical(model=model), parties, engine="inline", progress=False, secret_seed=7)
    return found, time.process_time() - began


@keeping_nothing("vertical-boost")
def _run(quick: bool) -> list[Claim]:
    return [*_parts(quick), *_hidden(quick)]


def _parts(quick: bool) -> list[Claim]:
    parties = _parties(4, 240 if quick else 1000)
    cipher = Paillier(key_bits=512, insecure=True) if quick else Paillier()
    settings: dict[str, Any] = {"trees": 2, "depth": 3, "bins": 8 if quick else 32, "cipher": cipher}
    size = f"{len(parties['owner-0']['id'])} rows, 2 columns at each of 4 owners, keys of {cipher.key_bits} bits"
    plain, _ = _train(SecureBoost(**settings | {"cipher": Paillier()}, security="none"), parties)
    bare, seconds = _train(SecureBoost(**settings, packed=False), parties)
    _same = [np.array_equal(bare.predictions["federated"], plain.predictions["federated"])]
    claims = []
    for name, more in (
        ("packed histograms", {}),
        ("streamed encryption", {"batch": 50}),
        ("optimistic splits", {"optimistic": True}),
        ("short exponents of noise (not in the paper)", {"short_exponents": True}),
    ):
        found, spent = _train(SecureBoost(**settings, **more), parties)
        same = np.array_equal(found.predictions["federated"], plain.predictions["federated"])
        _same.append(same)
        share = found.cost["bytes"] / bare.cost["bytes"]
        packing = name == "packed histograms"
        claims.append(
            Claim(
                f"{name}: the same trees" + (", in fewer bytes" if packing else ""), None, f"{share:.2f} of the bytes", same and (share < 1 or not packing),
                f"{spent:.3g} processor seconds of all parties, {seconds:.3g} with each sum in a ciphertext of its own; {size}", _BOOST,
            )
        )  # fmt: skip
    gap = bare.scores["test/federated/auc"] - bare.scores["test/alone/auc"]
    return [
        Claim("encrypted trees are the plain ones, with each part on and off", None, "equal" if all(_same) else "different", all(_same), f"predictions of all rows, to the bit; {size}", _BOOST),
        *claims,
        Claim("four owners predict better than the one with the labels", "AUC gains .02", float(f"{gap:.3f}"), gap >= 0.02, size, _BOOST),
    ]  # fmt: skip


def _hidden(quick: bool) -> list[Claim]:
    owners, rows = (3, 220) if quick else (10, 500)
    parties, claims = _parties(owners, rows), []
    cipher = Paillier(key_bits=256, insecure=True) if quick else Paillier()
    for learner, security in (("boosting", "enhanced"), ("forest", "basic"))[: 1 if quick else 2]:
        trees = 1 if quick or learner == "forest" else 2
        model = Pivot(learner=learner, security=security, trees=trees, depth=2, bins=8, sums="paillier", cipher=cipher)  # type: ignore[arg-type]
        found, spent = _train(model, parties)
        gap = float(np.abs(found.predictions["federated"] - train_pooled(Vertical(model=model), parties, found.outcome)).max())  # fmt: skip
        claims.append(
            Claim(f"hidden trees are the plain ones: {learner}, {security}", "at most 1e-3", gap, gap <= 1e-3,
                  f"largest difference of a probability; {owners} owners, {rows} rows; {spent:.3g} processor seconds of all parties and {found.cost['bytes'] / 1e6:.3g} MB, {trees} trees of depth 2", _PIVOT)
        )  # fmt: skip
    return claims


ENTRY = Entry(
    name="vertical-boost",
    title="VF2Boost and Pivot: boosted trees over columns at several owners",
    source="the survey of federated computing, table 22: VF2Boost (Fu et al. 2021), Pivot (Wu et al. 2020)",
    run=_run,
)
