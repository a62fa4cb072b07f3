"""Attacks on every secure reducer: who takes part, what a move may come to, and the report."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.secure.bounded import BoundedSum
from atoll.secure.encrypted import Encrypted
from atoll.secure.indexing import SecureIndexing
from atoll.secure.masking import OneShot, SecureAggregation
from atoll.secure.multi_round import MultiRound
from atoll.secure.seed_holders import Enclave, TwoServers
from atoll.secure.tree import SecureTree

from .moves import MOVES
from .opening import READERS
from .server import LyingInline
from .trial import AttackTrial

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.request import Request

    from .opening import Reader

__all__ = ["TARGETS", "AttackTarget", "Findings", "attack", "attack_all", "require_refusals"]

_LEAST = 6
_SITES = 7
_PATIENCE = 120.0
"""Seconds after which a site that shows no progress ends the attack with an error."""


@dataclass(frozen=True)
class AttackTarget:
    """A reducer to attack.

    Attributes:
        reducer: the reducer.
        halves: the module of its halves, without ``atoll.secure``; ``""`` for a protocol that no reader knows.
        parties: size of the cohort.
        least: the smallest sum that its sites agree to.
        none: move -> why it does not apply.
        others: data of helpers, by name; by default none.
    """

    reducer: Reducer
    halves: str
    parties: int = 7
    least: int = _LEAST
    none: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reader(self) -> Reader | None:
        """What takes masks off."""
        return READERS.get(self.halves)


TARGETS: dict[str, AttackTarget] = {
    "secagg": AttackTarget(SecureAggregation(least=_LEAST), "masking.halves"),
    "secagg-active": AttackTarget(SecureAggregation(least=_LEAST, server="active"), "masking.halves"),
    "multi-round": AttackTarget(MultiRound(least=_LEAST, server="active"), "standing.halves"),
    "one-shot": AttackTarget(OneShot(least=_LEAST), "masking.coded"),
    "two-servers": AttackTarget(TwoServers(least=_LEAST), "holders.halves"),
    "enclave": AttackTarget(Enclave(least=_LEAST), "holders.halves"),
    "bounded": AttackTarget(BoundedSum(norm=2.0**16, max_weight=1.0, least=_LEAST), "bounded.halves"),
    **{
        f"indexing-{by}": AttackTarget(SecureIndexing(by, least=_LEAST), "indexing.halves")
        for by in ("enclave", "shares", "keys")
    },
    **{
        name: AttackTarget(Encrypted(name, least=_LEAST), "encrypted.halves")
        for name in ("bfv", "ckks", "paillier", "batchcrypt")
    },
    "tree": AttackTarget(
        SecureTree(SecureAggregation(least=_LEAST, server="active"), size=7), "masking.halves", parties=14
    ),
}
"""Protocol -> its reducer, with sums of six parties and more of seven."""


@dataclass(frozen=True)
class _SumPolicy(SitePolicy):
    """A site's rule for replies to the program; the steps of a reducer that wrap none are free, whoever wrote it."""

    def admit(self, request: Request) -> None:
        """Refuse a request for a reply that may be in a sum of too few."""
        if request.wraps is not None:
            super().admit(request)


@dataclass
class Findings:
    """What attacks have come to.

    Attributes:
        protocols: protocol -> move -> ``"refused"``, ``"same bytes"``, ``"none"`` or ``"learned"``.
        reasons: the same, in words.
    """

    protocols: dict[str, dict[str, str]] = field(default_factory=dict)
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def moves(self) -> int:
        """Moves that were made."""
        return sum(found != "none" for rows in self.protocols.values() for found in rows.values())

    @property
    def learned(self) -> int:
        """Moves by which the server learned what it must not."""
        return sum(found == "learned" for rows in self.protocols.values() for found in rows.values())

    def message(self) -> dict[str, Any]:
        """The findings as ``atoll secure attack --json`` prints them."""
        return {
            "protocols": self.protocols,
            "reasons": self.reasons,
            "moves": self.moves,
            "learned": self.learned,
        }


def attack(
    target: AttackTarget,
    *,
    moves: Collection[str] = tuple(MOVES),
    real: bool = False,
    make_server: Callable[[], Any] | None = None,
    seed: int = 0,
) -> tuple[dict[str, str], dict[str, str]]:
    """Attack one reducer, move by move, in one world.

    Args:
        target: the reducer.
        moves: names of `MOVES`.
        real: between real site processes, instead of in this process.
        make_server: makes another lying server, whose parties are real processes.
        seed: of the world.

    Returns:
        What each move has come to, and why.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = [f"client-{i}" for i in range(target.parties)]
        data = {name: np.array([i, len(names)]) for i, name in enumerate(names)}
        people = Community(data, others={**dict.fromkeys(target.reducer.others), **target.others})
        real = real or make_server is not None
        server = _server(real) if make_server is None else make_server()
        world = World(
            people,
            server,
            seed=seed,
            clock=Clock(virtual=not real),
            folder=Path(folder),
            sealing="real",
            errors="drop",
            policy=_SumPolicy(smallest_cohort=target.least, second_sums=False),
        )
        found, reasons = dict[str, str](), dict[str, str]()

        async def program(fed: Federation) -> None:
            it = AttackTrial(server, fed, target.reducer, names, target.least, target.reader)
            await it.learn_steps()
            for name in moves:
                if name in target.none:
                    found[name], reasons[name] = "none", target.none[name]
                    continue
                it.begin()
                await MOVES[name](it)
                found[name], reasons[name] = it.judge()

        with _without_log():
            run(run_program(world, program), virtual=not real)
    return found, reasons


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep what parties write into their own logs, thousands of lines on refusals, from the terminal."""
    log = logging.getLogger("atoll")
    was, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was


def _server(real: bool) -> Any:
    if not real:
        return LyingInline()
    from .sites import LyingSites

    return LyingSites(_SITES, patience=_PATIENCE)


def require_refusals(
    reducer: Reducer, *, others: Mapping[str, Any] | None = None, moves: Collection[str] = tuple(MOVES), seed: int = 0
) -> None:
    """Require that a server that lies learns nothing, whatever its moves; see ``check_reducer``.

    Raises:
        AssertionError: it learns something; names the move.
    """
    kind = type(reducer)
    halves = next((row.halves for row in TARGETS.values() if type(row.reducer) is kind), "")
    target = AttackTarget(reducer, halves, least=max(2, int(getattr(reducer, "least", 2))), others=others or {})
    found, reasons = attack(target, moves=moves, seed=seed)
    for move, what in found.items():
        if what == "learned":
            raise AssertionError(f"{kind.__name__} breaks the law of lies, {move}: the server learns {reasons[move]}")


def attack_all(
    protocols: Collection[str] = tuple(TARGETS),
    *,
    moves: Collection[str] = tuple(MOVES),
    real: bool = False,
    told: Callable[[str], None] = lambda name: None,
) -> Findings:
    """Attack Atoll's own reducers.

    Args:
        protocols: names of `TARGETS`.
        moves: names of `MOVES`.
        real: between real site processes.
        told: called with the name of each protocol before it is attacked.

    Raises:
        ConfigError: a protocol or a move has another name.
    """
    _require_known("protocol", protocols, tuple(TARGETS))
    _require_known("move", moves, tuple(MOVES))
    findings = Findings()
    for name in protocols:
        told(name)
        findings.protocols[name], findings.reasons[name] = attack(TARGETS[name], moves=moves, real=real)
    return findings


def _require_known(kind: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"{kind} {name!r}", where="atoll secure attack", remedy=f"use one of {', '.join(known)}")
