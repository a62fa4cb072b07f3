"""Linear models over columns at several parties: golden measures, what other losses cost, and the rounds of quasi-Newton.

Source: Hardy et al. 2017, "Private federated learning on vertically partitioned data via entity resolution and additively homomorphic encryption" (Taylor's loss), Mohassel and Zhang 2017,
"SecureML" (three pieces), and K. Yang et al. 2019, "A Quasi-Newton Method Based Vertical Federated Learning Framework for Logistic Regression". The thesis and the survey that name them
print no numbers of theirs. Targets are our own: golden numbers and bounds that were agreed before this was measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import atoll
from atoll.core.message import split_frames
from atoll.core.requests.island import Secret
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.secure.encrypted import KeyOwner, Paillier, SealedVector
from atoll.vertical import Vertical, VerticalLinear, train_pooled
from atoll.vertical.transcript import write_transcript

__all__ = ["ENTRY"]

_GOLDEN, _LOSSES, _PROTOCOLS, _SOLVERS, _SUMS = (
    "",
    "Other losses",
    "Protocols",
    "Quasi-Newton",
    "Products of ciphertexts",
)
_NAMES = ("guest", "shop")


@keeping_nothing("vertical-linear")
def _run(quick: bool) -> list[Claim]:
    return [*([] if quick else _golden()), *_losses(quick), *_protocols(quick), *_solvers(quick), *_sums(quick)]


def _train(job: Vertical, parties: Mapping[str, Any], **more: Any) -> tuple[Any, float]:
    """A training, and the processor seconds of all parties."""
    began = time.process_time()
    found = atoll.simulate(job, dict(parties), engine="inline", progress=False, **more)
    return found, time.process_time() - began


def _draw(seed: int, rows: int, task: str = "binary") -> dict[str, dict[str, Any]]:
    """Four columns at each of two parties, which share traits, and labels that need both."""
    rng = np.random.default_rng(seed)
    traits = rng.normal(size=(rows, 3))
    x = {name: traits @ rng.normal(size=(3, 4)) / 2 + rng.normal(size=(rows, 4)) for name in _NAMES}
    signal = sum(one @ rng.normal(size=4) for one in x.values()) / 2 + rng.normal(size=rows)
    made: dict[str, dict[str, Any]] = {}
    for name, values in x.items():
        made[name] = {"id": np.arange(rows)} | {f"{name[0]}{j}": values[:, j] for j in range(4)}
    made["guest"]["y"] = signal if task == "regression" else (signal > 0).astype(np.int64)
    return made


# Golden measures.


def _golden() -> list[Claim]:
    made = []
    cases = (("motor", "ridge: RMSE", (0.8954, 0.2976)), ("default_credit", "logistic: AUC", (0.6567, 0.7131)))
    for name, what, expected in cases:
        guest, host = atoll.data.fate_vertical(name)
        found, _ = _train(Vertical(model=VerticalLinear(security="none")), {"guest": guest, "host": host})
        ours = tuple(round(value, 4) for value in found.scores.values())
        made.append(
            Claim(f"`{name}`, {what} of the guest alone and of both", " → ".join(map(str, expected)), " → ".join(map(str, ours)), ours == expected,
                  "seed 0, a quarter of the shared rows held out, penalty 1; scikit-learn gives the same", _GOLDEN)
        )  # fmt: skip
    return made


# Other losses.


def _losses(quick: bool) -> list[Claim]:
    tables: Any
    if quick:
        tables, where = _draw(0, 2000), "2,000 drawn rows"
    else:
        tables = dict(zip(("guest", "host"), atoll.data.fate_vertical("default_credit"), strict=True))
        where = "`default_credit`"
    job = Vertical(model=VerticalLinear(security="none"))
    exact, _ = _train(job, tables)
    plain = exact.compare(exact.predictions["federated"])["federated"]
    made = []
    for name, security, bound in (("Taylor's", "pair", 0.007), ("SecureML's three pieces", "shared", 0.0011)):
        pooled = train_pooled(replace(job, model=VerticalLinear(security=security)), tables, exact)  # type: ignore[arg-type]
        lost = round(plain - exact.compare(pooled)["pooled"], 4)
        gap = float(np.abs(pooled - exact.predictions["federated"]).max())
        made += [
            Claim(f"{name} loss costs AUC", f"at most {bound}", lost, lost <= bound, f"{where}, against the exact logistic loss", _LOSSES),
            Claim.figure(f"{name}: largest difference of a probability", round(gap, 2), f"{where}: single probabilities are others", _LOSSES),
        ]  # fmt: skip
    return [*made, *_pieces(job, tables, exact, plain, where)]


def _pieces(job: Vertical, tables: Mapping[str, Any], exact: Any, plain: float, where: str) -> list[Claim]:
    """The AUC that other pieces and stops lose, on the same rows: why three pieces lose more than hoped for."""
    x, y, train = _scaled(job, tables, exact)
    held = ~train

    def lost(w: Any) -> float:
        return round(plain - float(_auc(y[held], x[held] @ w)), 4) + 0.0  # never -0

    found = {
        "three pieces of slope 1/4": lost(_fit_pieces(x[train], y[train], (-2.0, 2.0), (0.0, 1.0))),
        "five pieces, through the logistic function at -4, -1, 1, 4": lost(
            _fit_pieces(x[train], y[train], (-4.0, -1.0, 1.0, 4.0), (0.018, 0.269, 0.731, 0.982))
        ),
        "three pieces, stopped after two passes of batches of 128 (SecureML's training)": lost(
            _descend(x[train], y[train])
        ),
    }
    note = f"{where}, at the optimum with penalty 1: no statement; the slope changes the scale of the weights alone"
    return [Claim.figure(f"AUC lost by {name}", value, note, _LOSSES) for name, value in found.items()]


def _scaled(job: Vertical, tables: Mapping[str, Any], result: Any) -> tuple[Any, Any, Any]:
    """All columns of the shared rows, scaled on the training rows, with a column of ones; labels; the training rows."""
    from atoll.vertical.model import ColumnScales

    told, columns = result.predictions, []
    for name in result.parties:
        table = job.read_table(tables[name], name, label=name == result.parties[0])
        keys = table.keys(job.id, job.order)
        place = dict(zip(keys.names, keys.places.tolist(), strict=True))
        columns.append(table.x[[place[key] for key in told["id"].tolist()]])
    x, train = np.concatenate(columns, axis=1), ~told["test"]
    return np.concatenate([ColumnScales.of(x[train]).apply(x), np.ones((len(x), 1))], axis=1), told["y"], train


def _auc(y: Any, scores: Any) -> float:
    order = np.argsort(np.argsort(scores, kind="stable"), kind="stable") + 1.0
    ones = y == 1
    return float((order[ones].sum() - ones.sum() * (ones.sum() + 1) / 2) / (ones.sum() * (~ones).sum()))


def _fit_pieces(x: Any, y: Any, knots: tuple[float, ...], values: tuple[float, ...]) -> Any:
    """Weights at the optimum of the loss whose derivative runs through these points, by accelerated steps in the metric of ``x'x`` (penalty 1)."""
    steepest = float(np.max(np.diff(values) / np.diff(knots)))
    ridge = np.append(np.ones(x.shape[1] - 1), 0.0)
    inverse = np.linalg.inv(steepest * x.T @ x + np.diag(ridge) + 1e-9 * np.eye(x.shape[1]))
    w = ahead = np.zeros(x.shape[1])
    momentum = 1.0
    for _ in range(2000):
        g = x.T @ (np.interp(x @ ahead, knots, values) - y) + ridge * ahead
        step = inverse @ g
        following = ahead - step
        momentum = 1.0 if g @ (following - w) > 0 else momentum
        later = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        w, ahead = following, following + (momentum - 1) / later * (following - w)
        momentum = later
        if g @ step <= 1e-10 * len(x):
            break
    return w


def _descend(x: Any, y: Any) -> Any:
    rng, w = np.random.default_rng(0), np.zeros(x.shape[1])
    for _ in range(2):
        order = rng.permutation(len(x))
        for begin in range(0, len(order) - 127, 128):
            rows = order[begin : begin + 128]
            w -= 2.0**-7 * x[rows].T @ (np.clip(x[rows] @ w + 0.5, 0, 1) - y[rows]) / 128
    return w


# Protocols.


def _protocols(quick: bool) -> list[Claim]:
    rows, seeds = (200, 1) if quick else (1000, 2)
    cipher = Paillier(key_bits=512, insecure=True) if quick else Paillier()
    bounds: dict[str, tuple[float, dict[str, Any]]] = {
        "pair": (1e-8, {"cipher": cipher, "short_exponents": True}),
        "arbiter": (1e-8, {"cipher": cipher}),
        "shared": (1e-3, {}),
        "ckks": (1e-5, {}),
    }
    made = []
    for security, (bound, more) in bounds.items():
        gaps, spent, carried = [], 0.0, 0.0
        for seed in range(seeds):
            tables = _draw(seed, rows, "binary" if seed % 2 == 0 else "regression")
            job = Vertical(model=VerticalLinear(security=security, **more))  # type: ignore[arg-type]
            found, seconds = _train(job, tables)
            gaps.append(found.compare(train_pooled(job, tables, found))["difference"])
            spent, carried = spent + seconds / seeds, carried + found.cost["bytes"] / seeds
        keys = f", keys of {cipher.key_bits} bits" if security in ("pair", "arbiter") else ""
        made.append(
            Claim(f"`{security}` is the same learner in the clear", f"at most {bound:g}", float(f"{max(gaps):.1g}"), max(gaps) <= bound,
                  f"largest difference of a prediction; {rows:,} drawn rows, 4 + 4 columns{keys}; {spent:.2g} processor seconds of all parties, {carried / 1e6:.2g} MB", _PROTOCOLS)
        )  # fmt: skip
    return made


# Quasi-Newton.


def _count_messages(folder: Path, source: str, target: str) -> int:
    """The messages of a link, from its transcript."""
    return len(split_frames((folder / f"{source}--{target}.bin").read_bytes()))


def _solvers(quick: bool) -> list[Claim]:
    tables, where = _draw(3, 200 if quick else 1000), "drawn rows, 4 + 4 columns"
    cipher = Paillier(key_bits=512, insecure=True) if quick else Paillier()
    found: dict[str, dict[str, float]] = {}
    best: dict[str, Any] = {}
    for solver in ("gradient", "newton", "quasi-newton"):
        model = VerticalLinear(solver=solver, cipher=cipher, short_exponents=True)
        job = Vertical(model=model, transcript=True)
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            result, seconds = _train(job, tables, results=folder / "results")
            best[solver] = result.outcome.predictions["federated"]
            write_transcript(dict.fromkeys(_NAMES, folder / "results"), _NAMES, folder / "heard")
            messages = _count_messages(folder / "heard", "shop", "guest")
        found[solver] = {"messages": messages, "bytes": result.outcome.cost["bytes"], "seconds": seconds}
    size = f"{len(tables['guest']['id']):,} {where}, keys of {cipher.key_bits} bits"
    claims = [
        Claim.figure(f"{solver}: messages of the host", int(one["messages"]), f"{one['bytes'] / 1e6:.2f} MB, {one['seconds']:.2g} processor seconds; {size}", _SOLVERS)
        for solver, one in found.items()
    ]  # fmt: skip
    gap = max(float(np.abs(best[one] - best["newton"]).max()) for one in best)
    share = found["quasi-newton"]["messages"] / found["gradient"]["messages"]
    return [
        Claim("all three find one optimum", "at most 1e-8", float(f"{gap:.1g}"), gap <= 1e-8, f"largest difference of a prediction; {size}", _SOLVERS),
        Claim("quasi-Newton takes fewer rounds than gradient descent", "below 1", round(share, 2), share < 1, f"share of the host's messages; the products start from each party's own block; {size}", _SOLVERS),
        *claims,
    ]  # fmt: skip


# Products.


def _sums(quick: bool) -> list[Claim]:
    """``sum_i v_i x_i`` of encrypted x, against one power each."""
    from atoll.secure.encrypted.paillier import gmp

    rows, cipher = (2000 if quick else 8000), Paillier()
    owner = KeyOwner(cipher, Secret(1), short=True)
    sealed = SealedVector(cipher, owner.public, owner.encrypt(list(range(rows))))
    v = np.rint(np.random.default_rng(0).normal(size=(rows, 1)) * 2.0**40).astype(np.int64)
    began = time.process_time()
    [product] = sealed.weighted_sums(v)
    ours = time.process_time() - began
    began = time.process_time()
    square, plain = sealed.key.square, gmp().mpz(1)
    for c, one in zip(sealed.numbers, v[:, 0].tolist(), strict=True):
        plain = plain * gmp().powmod(c, one, square) % square
    theirs = time.process_time() - began
    ratio = theirs / ours
    return [
        Claim("sums of ciphertexts times numbers are faster than one power each", "5 times", round(ratio, 1), ratio >= 5 and product == plain,
              f"{rows:,} rows, whole numbers of 40 bits, keys of 2048 bits; both give one ciphertext", _SUMS)
    ]  # fmt: skip


ENTRY = Entry(
    name="vertical-linear",
    title="Linear models over columns at several parties: other losses, protocols, and quasi-Newton",
    source="Hardy et al. 2017; Mohassel and Zhang 2017 (SecureML); K. Yang et al. 2019; golden numbers of FATE's examples are our own",
    run=_run,
    needs="FATE's vertical examples below ATOLL_DATA",
    data=("fate_vertical:default_credit", "fate_vertical:motor"),
    quick_data=(),
)
