"""Rounds of FedAvg, FedCS, fully local training and SAFA over crashing clients, without any training: slow, short, and the oracle of the real pacing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.devices.accounting import RoundAccount

__all__ = ["Crashes", "SafaRounds", "cached", "cfcfm", "draw_crashes", "fedavg", "fedcs", "local", "quota_of", "safa"]


Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Crashes:
    """Which clients crash when, the same for every algorithm.

    Attributes:
        crashed: whether a client crashes in a round, ``(rounds, clients)``.
        point: share of the round's work done by then, same shape; 1 if it does not crash.
    """

    crashed: Bools
    point: Floats


@dataclass(frozen=True)
class SafaRounds:
    """What each client did in each round: booleans of shape ``(rounds, clients)``.

    Attributes:
        seconds: each client's response time when nothing fails, ``(clients,)``.
        quota: replies that the server wants in a round.
        asked: trained in this round.
        sent: received the global model at its start.
        crashed: trained and crashed.
        picked: its reply is in the round's model.
        undrafted: its reply arrived and waits for the next round.
        deprecated: its own model was too old and overwritten at the start.
        versions: round whose model its training started from, integers.
        point: share of the round's work done, floats.
        resumes: whether a crashed client continues from its own model afterwards.
        filled: whether clients that were not picked in the round before filled the quota, ``(rounds,)``; ``None`` if no
            client has priority.
        pickable: clients whose replies can be in a round, ``(clients,)``; ``None`` for all.
    """

    seconds: Floats
    quota: int
    asked: Bools
    sent: Bools
    crashed: Bools
    picked: Bools
    undrafted: Bools
    deprecated: Bools
    versions: Ints
    point: Floats
    resumes: bool = False
    filled: Bools | None = None
    pickable: Bools | None = None

    def log(self, literal: bool = False) -> RoundAccount:
        """Return the columns behind times and ratios.

        Wasted work is what a client had done when it crashed, if it starts again afterwards. If it continues, it is one
        round's work for every own model that the server overwrites, as in the thesis' tables.

        Args:
            literal: the round waits literally as in Algorithm 1: clients picked last round fill the quota only once no
                client with priority can arrive any more, which a server knows when all have arrived, or at the limit.
                Otherwise it ends when the last picked reply has arrived.
        """
        finished = self.picked | self.undrafted
        lost = self.deprecated.astype(float) if self.resumes else np.where(self.crashed, self.point, 0.0)
        taken = np.where(self.picked, self.seconds, 0.0).max(axis=1)
        unmet = self.picked.sum(axis=1) < np.minimum(self.quota, self.asked.sum(axis=1))
        if literal and self.filled is not None:
            came = self.asked & ~self.crashed
            came &= True if self.pickable is None else self.pickable
            taken = np.where(self.filled, taken, np.where(came, self.seconds, 0.0).max(axis=1))
            unmet = ~self.filled & ~came.all(axis=1)
        n = finished.sum(axis=1)
        total, squares = ((finished * self.versions**power).sum(axis=1) for power in (1, 2))
        return RoundAccount(
            clients=self.asked.shape[1],
            copies=self.sent.sum(axis=1),
            effective=self.picked.sum(axis=1),
            taken=taken,
            asked=np.where(self.asked, self.seconds, 0.0).max(axis=1),
            unmet=unmet,
            variance=(n * squares - total**2) / np.maximum(n, 1) ** 2,  # in whole numbers, so without cancellation
            futile=lost.sum(axis=1),
            begun=self.asked.sum(axis=1),
        )


def draw_crashes(rounds: int, clients: int, crash: float, rng: np.random.Generator) -> Crashes:
    """Draw crashes: every client crashes in every round with probability ``crash``, at a point of its work drawn from ``U(0, 1)``."""
    crashed = rng.random((rounds, clients)) < crash
    return Crashes(crashed, np.where(crashed, rng.random((rounds, clients)), 1.0))


def quota_of(clients: int, fraction: float) -> int:
    """Return ``ceil(C N)``, at least one."""
    return max(1, math.ceil(fraction * clients - 1e-9))


def _synchronous(
    crashes: Crashes, seconds: Floats, fraction: float, rng: np.random.Generator, able: Bools, limit: float
) -> SafaRounds:
    """Draw ``ceil(C N)``, ask those that are able, take all that answer in time."""
    rounds, clients = crashes.crashed.shape
    quota = quota_of(clients, fraction)
    asked = np.zeros((rounds, clients), bool)
    for t in range(rounds):
        asked[t, rng.choice(clients, quota, replace=False)] = True
    asked &= able
    crashed = asked & crashes.crashed
    none = np.zeros_like(asked)
    versions = np.repeat(np.arange(rounds)[:, None], clients, axis=1)
    picked = asked & ~crashed & (seconds <= limit)
    return SafaRounds(seconds, quota, asked, asked, crashed, picked, none, none, versions, crashes.point)


def fedavg(
    crashes: Crashes, seconds: Floats, fraction: float, rng: np.random.Generator, limit: float = math.inf
) -> SafaRounds:
    """Run FedAvg: ``ceil(C N)`` random clients get the model; those that neither crash nor need more than ``limit`` seconds are in the round."""
    return _synchronous(crashes, seconds, fraction, rng, np.ones(len(seconds), bool), limit)


def fedcs(
    crashes: Crashes,
    seconds: Floats,
    fraction: float,
    rng: np.random.Generator,
    forecast: Floats,
    limit: float,
) -> SafaRounds:
    """Run FedCS: as FedAvg, but only drawn clients whose ``forecast`` is also within ``limit`` seconds are asked."""
    return _synchronous(crashes, seconds, fraction, rng, forecast <= limit, limit)


def local(crashes: Crashes, seconds: Floats, fraction: float, rng: np.random.Generator) -> SafaRounds:
    """Run fully local training: ``ceil(C N)`` random clients train alone, and all models are averaged once, at the very end."""
    made = fedavg(crashes, seconds, fraction, rng)
    picked, none = np.zeros_like(made.asked), np.zeros_like(made.asked)
    picked[-1] = True
    begun = np.zeros_like(made.versions)
    return SafaRounds(
        seconds, made.quota, made.asked, none, made.crashed, picked, none, none, begun, crashes.point, True
    )


def cfcfm(arrivals: list[int], before: set[int], quota: int) -> list[int]:
    """Pick by compensatory first come, first merged: of the arrivals in order, first those not picked last round, then the others (Algorithm 1).

    Args:
        arrivals: clients in the order of their replies.
        before: clients picked in the last round.
        quota: most clients to pick.
    """
    fresh = [k for k in arrivals if k not in before]
    others = [k for k in arrivals if k in before]
    return (fresh + others)[:quota]


def safa(
    crashes: Crashes,
    seconds: Floats,
    fraction: float,
    lag: int,
    *,
    beyond: bool = True,
    order: Floats | None = None,
    pickable: Bools | None = None,
) -> SafaRounds:
    """Run SAFA: every client trains; a model of lag ``(t - 1) - v`` is overwritten if it is current (lag 0) or too old (Algorithm 2, Eq. 3.7).

    Args:
        crashes: the trace.
        seconds: response times, ``(clients,)``.
        fraction: ``C``, of which the quota is made.
        lag: tolerance ``tau``.
        beyond: too old means ``lag > tau``, as in the text and the tables; otherwise ``lag >= tau``, as Eq. 3.7 is
            printed.
        order: clients arrive by this number, the smallest first; ``seconds`` if ``None``.
        pickable: where false, clients are never picked and stay undrafted; ``None`` for all clients.
    """
    rounds, clients = crashes.crashed.shape
    quota = quota_of(clients, fraction)
    queue = np.argsort(seconds if order is None else order, kind="stable")
    sent, picked, undrafted, deprecated = (np.zeros((rounds, clients), bool) for _ in range(4))
    versions, filled = np.zeros((rounds, clients), np.int64), np.zeros(rounds, bool)
    version, before = np.zeros(clients, np.int64), set[int]()
    for t in range(1, rounds + 1):
        age = (t - 1) - version
        old = age > lag if beyond else age >= max(lag, 1)
        sent[t - 1], deprecated[t - 1] = (age == 0) | old, old
        version[old] = t - 1
        versions[t - 1] = version
        done = ~crashes.crashed[t - 1]
        came = queue[(done if pickable is None else done & pickable)[queue]].tolist()
        chosen = cfcfm(came, before, quota)
        filled[t - 1] = before.isdisjoint(chosen) and len(chosen) == quota
        picked[t - 1, chosen] = True
        undrafted[t - 1] = done & ~picked[t - 1]
        version[done] = t
        before = set(chosen)
    asked = np.ones((rounds, clients), bool)
    return SafaRounds(
        seconds,
        quota,
        asked,
        sent,
        crashes.crashed,
        picked,
        undrafted,
        deprecated,
        versions,
        crashes.point,
        True,
        filled,
        pickable,
    )


def cached(made: SafaRounds) -> tuple[Ints, Bools]:
    """Return whose work represents each client in each round's model under SAFA (Eqs. 3.9 to 3.11), ``(rounds, clients)`` each.

    Returns:
        The round that the server's entry for a client comes from when round t is aggregated; 0 is the start. And
        whether the entry is the client's own training of that round, or else the global model after it.
    """
    rounds, clients = made.asked.shape
    origin, own = np.zeros((rounds, clients), np.int64), np.zeros((rounds, clients), bool)
    entry, mine = np.zeros(clients, np.int64), np.zeros(clients, bool)
    for t in range(1, rounds + 1):
        picked, undrafted = made.picked[t - 1], made.undrafted[t - 1]
        replaced = made.deprecated[t - 1] & ~picked
        entry[replaced], mine[replaced] = t - 1, False
        entry[picked], mine[picked] = t, True
        origin[t - 1], own[t - 1] = entry, mine
        entry[undrafted], mine[undrafted] = t, True
    return origin, own
