"""Audits of every mechanism, and of mechanisms that are broken on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from atoll.auditing import Canaries, Planted, audit
from atoll.auditing.broken import (
    HalfLaplace,
    PrivateNormaliser,
    SeededNoise,
    UnclippedReplies,
    WeakNoise,
    noise_of_seed,
)
from atoll.auditing.central import averaging
from atoll.auditing.replies import audit_replies
from atoll.learn.private import CentralDP, LaplaceLDP, ShuffledDP
from atoll.privacy import Audit
from atoll.stages import FedSel, LocalGaussian, LocalLaplace, RandomisedSigns

__all__ = ["AuditCase", "audits"]

_DELTA = 1e-5
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
    model = "the final model is scored"
    replies = "the server sees each reply"
    return [
        AuditCase("CentralDP, users", False, model, partial(_trained, CentralDP, 4.0)),
        AuditCase("LaplaceLDP, epsilon 1", False, replies, partial(_seen, LocalLaplace(1.0, 1.0))),
        AuditCase("SignsLDP, epsilon 1", False, replies, partial(_seen, RandomisedSigns(0.5, 1.0, 2), entries=2)),
        AuditCase("FedSelDP, epsilon 2", False, replies, partial(_seen, FedSel(0.5, 2.0, 0.25, 1), apart=True)),
        AuditCase("GaussianLDP, noise 2", False, replies, partial(_seen, LocalGaussian(1.0, 2.0), delta=_DELTA)),
        AuditCase("ShuffledDP of LaplaceLDP, users that are replaced", False, model, _shuffled, quick=False),
        AuditCase(
            "noise from the seed", True, "who knows the seed subtracts it", partial(_trained, SeededNoise, 4.0, seed=_SEED)
        ),
        AuditCase("sensitivity halved", True, f"Laplace noise for one bound, not two; {replies}", partial(_seen, HalfLaplace(1.0, 1.0))),
        AuditCase("unclipped replies", True, "the clip is left out", partial(_trained, UnclippedReplies, 4.0)),
        AuditCase("noise counted twice", True, "shares of sigma / n, as if deviations added up: sigma / sqrt(n) in all", _twice),
        AuditCase("private normaliser", True, "replies weigh what their clients hold; noise is for equal weights", _weighted),
    ]  # fmt: skip


def _users(parties: int) -> Any:
    import atoll.data

    return atoll.data.iid(atoll.data.digits(), parties=parties, seed=0)


def _trained(kind: type[CentralDP], epsilon: float, canaries: int, confidence: float = 0.95, **settings: Any) -> Audit:
    mechanism = kind(epsilon=epsilon, delta=_DELTA, clip=1.0, **settings)
    rounds = 2

    def job(planted: Planted) -> Any:
        return averaging(planted, mechanism, rounds)

    def known(planted: Planted) -> Any:
        noise = job(planted).installed(planted.islands).claim.noise
        shape, n = (planted.features, planted.classes), len(planted.islands)
        total = sum(noise_of_seed(_SEED, "weight", number, shape, noise) for number in range(1, rounds + 1))
        return {"weight": total / n}

    subtracted = known if isinstance(mechanism, SeededNoise) else None
    return audit(job, _users(100), Canaries(count=canaries, confidence=confidence), delta=_DELTA, known=subtracted)


def _twice(canaries: int, confidence: float = 0.95) -> Audit:
    clients = 100 + canaries // 2
    return _trained(WeakNoise, 4.0, canaries, confidence, factor=1 / math.sqrt(clients))


def _weighted(canaries: int, confidence: float = 0.95) -> Audit:
    """Few heavy canaries among many light clients; half of the canaries take part."""
    mechanism = PrivateNormaliser(epsilon=1.0, delta=_DELTA, clip=1.0)
    few = Canaries(count=max(60, canaries // 10), rows=60, confidence=confidence)
    return audit(lambda planted: averaging(planted, mechanism, 1), _users(1200), few, delta=_DELTA)


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
    return audit_replies(stage, canaries=canaries, **settings)
