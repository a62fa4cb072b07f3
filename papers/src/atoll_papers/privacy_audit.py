"""Audits by canaries: the lower bound of every mechanism stays below its claim, and five broken mechanisms are caught.

The method is that of Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (2023): coins decide which canaries are in a run, the auditor guesses them from
what is released, and the number of right guesses bounds epsilon from below with confidence 95 %. The runs are real trainings on the digits; the claims are
those of their ledgers. An honest mechanism would be refuted wrongly in at most 5 % of the runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from atoll.algorithms import FedAvg
from atoll.auditing import Canaries, Planted, audit
from atoll.auditing.run import (
    HalfGaussian,
    HalfLaplace,
    PrivateNormaliser,
    SeededNoise,
    UnclippedReplies,
    WeakNoise,
    audit_replies,
    averaging,
    noise_of_seed,
)
from atoll.mechanisms import (
    DPFTRL,
    AdaptiveClip,
    CentralDP,
    DistributedDP,
    ExampleDP,
    LaplaceLDP,
    Mechanism,
    NbAFL,
    ShuffledDP,
)
from atoll.privacy import Audit
from atoll.reducers import TwoServers
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.selection import CyclicGroups
from atoll.stages import FedSel, LocalGaussian, LocalLaplace, RandomisedSigns

__all__ = ["ENTRY", "AuditCase", "audits"]


# ------------------------------------------------------------------ audits, of mechanisms that hold and of broken ones

_DELTA = 1e-5
_GUESSED = 5
"""One coin of so many is guessed where the claim is one of Gaussian noise: the surest guesses tell most. With a fifth of 1,000, half the noise at epsilon 4 is caught in all of 100 trials;
with half of them, in 95."""
_SEED = 5  # of the job whose noise follows from it


@dataclass(frozen=True)
class AuditCase:
    """One audit.

    Attributes:
        name: what is audited.
        broken: whether it lies, so that its claim must be refuted.
        note: what is broken, or what was audited how.
        run: ``(canaries, confidence=) -> Audit``.
        quick: whether ``--quick`` runs it.
    """

    name: str
    broken: bool
    note: str
    run: Callable[..., Audit]
    quick: bool = True


def audits() -> list[AuditCase]:
    """Return all cases: the honest first."""
    model, replies = "the final model is scored", "the server sees each reply"
    return [
        AuditCase("CentralDP, users", False, model, partial(_trained, CentralDP, 4.0)),
        AuditCase("CentralDP with adaptive clipping", False, model, partial(_trained, CentralDP, 4.0, adapt=AdaptiveClip()), quick=False),
        AuditCase("DPFTRL, tree", False, f"{model} after 4 rounds, each client in all", partial(_trained, DPFTRL, 4.0, rounds=4, factorisation="tree"), quick=False),
        AuditCase("DPFTRL, bands", False, f"{model}; 4 groups of clients, each once", _in_turns),
        AuditCase("DistributedDP, two servers", False, "clients' shares of Skellam noise; the opened sums are scored", _distributed, quick=False),
        AuditCase("ExampleDP, examples of one client", False, "its model after 4 local steps is scored", _examples),
        AuditCase("NbAFL, users", False, f"{model}, which has the noise of all clients", partial(_trained, NbAFL, 4.0, rounds=1), quick=False),
        AuditCase("LaplaceLDP, epsilon 1", False, replies, partial(_seen, LocalLaplace(1.0, 1.0))),
        AuditCase("SignsLDP, epsilon 1", False, replies, partial(_seen, RandomisedSigns(0.5, 1.0, 2), entries=2)),
        AuditCase("FedSelDP, epsilon 2", False, replies, partial(_seen, FedSel(0.5, 2.0, 0.25, 1), apart=True)),
        AuditCase("GaussianLDP, noise 2", False, replies, partial(_seen, LocalGaussian(1.0, 2.0), delta=_DELTA, tradeoff="gaussian")),
        AuditCase("ShuffledDP of LaplaceLDP, users that are replaced", False, model, _shuffled, quick=False),
        AuditCase(
            "noise from the seed", True, "who knows the seed subtracts it", partial(_trained, SeededNoise, 4.0, seed=_SEED)
        ),
        AuditCase("sensitivity halved, Laplace noise", True, f"noise for one bound, not two; {replies}", partial(_seen, HalfLaplace(1.0, 1.0))),
        AuditCase(
            "sensitivity halved, Gaussian noise", True, f"noise for one bound, not two; {replies}",
            partial(_seen, HalfGaussian(1.0, 1.0), delta=_DELTA, tradeoff="gaussian"),
        ),
        AuditCase("sensitivity halved, CentralDP", True, f"half the noise; {model}", partial(_trained, WeakNoise, 4.0, factor=0.5)),
        AuditCase("unclipped replies", True, "the clip is left out", partial(_trained, UnclippedReplies, 4.0)),
        AuditCase("noise counted twice", True, "shares of sigma / n, as if deviations added up: sigma / sqrt(n) in all", _twice),
        AuditCase("private normaliser", True, "replies weigh what their clients hold; noise is for equal weights", _weighted),
    ]  # fmt: skip


def _users(parties: int) -> Any:
    import atoll.data

    return atoll.data.iid(atoll.data.digits(), parties=parties, seed=0)


def _trained(
    kind: Callable[..., Mechanism],
    epsilon: float,
    canaries: int,
    confidence: float = 0.95,
    *,
    rounds: int = 2,
    **settings: Any,
) -> Audit:
    mechanism = kind(epsilon=epsilon, delta=_DELTA, clip=1.0, **settings)

    def job(planted: Planted) -> Any:
        return averaging(planted, mechanism, rounds)

    def known(planted: Planted) -> Any:
        noise = job(planted).installed(planted.islands).claim.noise
        shape, n = (planted.features, planted.classes), len(planted.islands)
        total = sum(noise_of_seed(_SEED, "weight", number, shape, noise) for number in range(1, rounds + 1))
        return {"weight": total / n}

    subtracted = known if isinstance(mechanism, SeededNoise) else None
    return audit(job, _users(100), _gaussian(canaries, confidence), delta=_DELTA, known=subtracted)


def _gaussian(canaries: int, confidence: float, **settings: Any) -> Canaries:
    """Canaries against a claim of Gaussian noise."""
    fixed: dict[str, Any] = {"guesses": canaries // _GUESSED, **settings}
    return Canaries(count=canaries, confidence=confidence, tradeoff="gaussian", **fixed)


def _twice(canaries: int, confidence: float = 0.95) -> Audit:
    clients = 100 + canaries // 2
    return _trained(WeakNoise, 4.0, canaries, confidence, factor=1 / math.sqrt(clients))


def _in_turns(canaries: int, confidence: float = 0.95) -> Audit:
    mechanism = DPFTRL(epsilon=4.0, delta=_DELTA, clip=1.0)
    turns = CyclicGroups(0.25)
    return audit(
        lambda planted: averaging(planted, mechanism, 4, selection=turns),
        _users(100),
        _gaussian(canaries, confidence),
        delta=_DELTA,
    )


def _distributed(canaries: int, confidence: float = 0.95) -> Audit:
    """Every client replies, so the sum has the noise of all that share it, and no more."""

    def job(planted: Planted) -> Any:
        mechanism = DistributedDP(epsilon=4.0, delta=_DELTA, clip=1.0, least=len(planted.islands))
        return averaging(planted, mechanism, 2, reducer=TwoServers())

    few = Canaries(count=canaries, confidence=confidence)
    return audit(job, _users(20), few, delta=_DELTA, accountant="rdp", adversary="server")


def _examples(canaries: int, confidence: float = 0.95) -> Audit:
    """One client, whose every example is in every step: nothing hides a canary but the noise."""
    mechanism = ExampleDP(epsilon=4.0, delta=_DELTA, clip=1.0, batch=1000, rate=1.0)
    local = FedAvg(lr=0.5, steps=4, batch_size=1000)
    return audit(
        lambda planted: averaging(planted, mechanism, 1, algorithm=local),
        _users(1),
        _gaussian(canaries, confidence, unit="example"),
        delta=_DELTA,
        adversary="server",
    )


def _weighted(canaries: int, confidence: float = 0.95) -> Audit:
    """Few heavy canaries among many light clients; half of the canaries take part."""
    mechanism = PrivateNormaliser(epsilon=1.0, delta=_DELTA, clip=1.0)
    few = max(60, canaries // 10)
    heavy = _gaussian(few, confidence, rows=60, guesses=few // 2)
    return audit(lambda planted: averaging(planted, mechanism, 1), _users(1200), heavy, delta=_DELTA)


def _shuffled(canaries: int, confidence: float = 0.95) -> Audit:
    local = LaplaceLDP(noise=1.0, clip=1.0)
    mechanism = ShuffledDP(epsilon=1.0, delta=_DELTA, local=local, shuffler="server")
    many = Canaries(count=canaries, neighbours="replace-one", confidence=confidence)
    return audit(
        lambda planted: averaging(planted, mechanism, 1),
        _users(100),
        many,
        delta=_DELTA,
    )


def _seen(stage: Any, canaries: int, **settings: Any) -> Audit:
    guesses = canaries // _GUESSED if settings.get("tradeoff") == "gaussian" else None
    return audit_replies(stage, canaries=canaries, guesses=guesses, **settings)


# ------------------------------------------------------------------ the entry

_GOLDEN = ((180, 200, 1.799), (75, 100, 0.702))


def _golden() -> list[Claim]:
    from atoll.privacy import lower_bound

    return [
        Claim(
            f"{right} of {guesses} right guesses prove an epsilon of {paper} at 95 %",
            paper,
            round(lower_bound(right, guesses), 4),
            abs(lower_bound(right, guesses) - paper) < 5e-4,
            "delta 0",
            basis="derived",
        )
        for right, guesses, paper in _GOLDEN
    ]


def _judged(case: AuditCase, canaries: int) -> Claim:
    began = time.perf_counter()
    found = case.run(canaries)
    shown = f"at least {found.lower:.3g}, claimed {found.claimed:.3g}"
    note = f"{case.note}; {found.right} of {found.guesses} guesses about {found.canaries} {found.unit}s, {found.neighbours}, adversary {found.adversary}; {time.perf_counter() - began:.0f} s"
    if case.broken:
        return Claim(f"{case.name}: the audit refutes it", None, shown, found.refuted, note, part="Broken on purpose")
    return Claim(f"{case.name}: the audit does not refute it", None, shown, not found.refuted, note, part="Mechanisms")


@keeping_nothing("privacy-audit")
def _run(quick: bool) -> list[Claim]:
    return [*_golden(), *(_judged(case, 600 if quick else 1000) for case in audits() if case.quick or not quick)]


ENTRY = Entry(
    name="privacy-audit",
    title="Audits by canaries: mechanisms that hold, and five that are broken on purpose",
    source="Steinke, Nasr, Jagielski. Privacy Auditing with One (1) Training Run. NeurIPS 2023",
    run=_run,
)
