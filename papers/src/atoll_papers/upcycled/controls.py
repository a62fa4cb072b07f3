"""Comparisons that the paper lacks: a server learning rate, other coefficients, and counted contacts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from atoll.reproduce import Claim, Lab, NotKept

from .cells import UpcycledCell, UpcycledProtocol, cell, settings
from .methods import COEFFICIENTS
from .pairs import Key, PairedCells, at_base_rate, decided, over_populations

__all__ = ["contacts", "folds", "larger", "scaffold"]

_FOLDS = ("FedAvg", "FedAvgM", "FedProx", "pFedMe", "FedYogi")
"""Bases whose server adds a multiple of a direction that the model itself does not enter: a pair of rounds is one with rate ``1 + u``."""


def _server(lab: Lab, protocol: UpcycledProtocol, kind: str, pair: PairedCells) -> UpcycledCell | None:
    """Run ``T`` rounds of the base with server learning rate ``1 + u``, at the settings of its Upcycled version."""
    try:
        return cell(lab, replace(pair.upcycled.method, way="server"), kind, protocol)
    except NotKept:
        return None


def folds(lab: Lab, protocol: UpcycledProtocol, pairs: Mapping[Key, PairedCells]) -> Claim:
    """Judge the identity with the server learning rate, on the first seed."""
    one = replace(protocol, seeds=1)
    found = {
        key: (_server(lab, one, key[1], pair), float(pair.upcycled.values[0]))
        for key, pair in pairs.items()
        if key[0] in _FOLDS
    }
    apart = [abs(float(server.values[0]) - value) for server, value in found.values() if server is not None]
    return Claim(
        "Upcycled is more than its base with server learning rate 1 + u",
        None,
        max(apart, default=None),
        max(apart) > 1e-3 if apart else None,
        f"largest difference in accuracy, over {len(apart)} cells of {', '.join(_FOLDS)}, between T rounds of the base with server learning rate 1 + u "
        "and 2 T of Upcycled at the same settings, first seed; by algebra they are the same method, and 0 says so. The paper does not compare",
    )


def scaffold(lab: Lab, protocol: UpcycledProtocol, pairs: Mapping[str, PairedCells]) -> Claim:
    """Judge Scaffold, whose Upcycled version also moves the control variate, which a server learning rate does not.

    Judged as a cell is: a seed's value is its mean over the populations, each with equal weight.

    Args:
        lab: runs and keeps trainings.
        protocol: how much is run.
        pairs: Scaffold's, by population.
    """
    servers = {kind: _server(lab, protocol, kind, pair) for kind, pair in pairs.items()}
    found = {
        kind: PairedCells.of(server, pairs[kind].upcycled) for kind, server in servers.items() if server is not None
    }
    claim = "Upcycled-Scaffold, which moves the control variate along, is better than Scaffold with server learning rate 1 + u"
    if not found:
        return Claim(claim, None, None, None)
    gains, error = over_populations([pair.gains for pair in found.values()])
    each = "; ".join(f"({kind}) {', '.join(f'{gain:+.2f}' for gain in pair.gains)}" for kind, pair in found.items())
    return Claim(
        claim,
        None,
        f"{gains.mean():+.2f} ± {error:.2f}",
        decided(gains, error),
        f"mean difference in points ± its standard error over the seeds, decided as cells are; seed by seed {each}",
    )


def contacts(lab: Lab, protocol: UpcycledProtocol, pairs: Mapping[Key, PairedCells]) -> Claim:
    """Judge contacts and bytes at equal iterations, in the first cell and seed."""
    (_, kind), pair = next(iter(pairs.items()))
    sums = []
    for found in (pair.base, pair.upcycled):
        rows = lab.train(settings(found.method, kind, protocol, tuning=False, seed=0)).rows[: protocol.rounds]
        sums.append([sum(float(row[name]) for row in rows) for name in ("selected", "bytes_up", "bytes_down")])
    shares = np.array(sums[1]) / np.array(sums[0])
    return Claim(
        "at equal iterations half of the contacts and half of the bytes (section 4)",
        0.5,
        [round(float(share), 4) for share in shares],
        bool(np.abs(shares - 0.5).max() < 0.01),
        f"contacts, bytes up and bytes down of Upcycled over those of the base in {protocol.rounds} iterations",
    )


def larger(lab: Lab, protocol: UpcycledProtocol, kind: str, where: str, pair: PairedCells) -> Claim:
    """Judge a base with every coefficient, at its own learning rate; ``where`` is the population in words."""
    tried = {u: at_base_rate(lab, protocol, kind, pair, u) for u in COEFFICIENTS}
    found = {u: made for u, made in tried.items() if made is not None}
    best = max(found.values(), key=lambda made: float(made.gains.mean()), default=None)
    return Claim(
        f"Upcycled-FedAvg is better than FedAvg on {where} at the learning rate of FedAvg, with one u or another",
        None,
        ", ".join(f"u={u:g}: {made.gains.mean():+.2f} ± {made.error:.2f}" for u, made in found.items()),
        None if best is None else decided(best.gains, best.error),
        f"gain in points ± its standard error at lr={pair.base.method.lr:g}; judged by the better u, although it is picked on the test rows",
    )
