"""What clients do over time, at three paces: a run of six clients, recorded by their devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

__all__ = ["Span", "Timeline", "timeline"]


@dataclass(frozen=True)
class Span:
    """A client at work.

    Attributes:
        client: its position.
        start: seconds.
        end: when its reply arrived or was lost.
        lost: it crashed, or received a newer model before it was done.
    """

    client: int
    start: float
    end: float
    lost: bool


@dataclass
class _Witness:
    """A model of devices that records its answers."""

    fleet: Any
    spans: list[Span] = field(default_factory=list)

    def plan(self, parties: Any, plan: Any) -> Any:
        made = self.fleet.plan(parties, plan)
        ends, done = plan.now + np.asarray(made.seconds), np.asarray(made.done)
        of = zip(parties.positions.tolist(), ends.tolist(), done.tolist(), strict=True)
        self.spans += [Span(k, plan.now, end, not ok) for k, end, ok in of]
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fleet, name)


def _cut(spans: Sequence[Span]) -> list[Span]:
    """Return the same spans, with work cut when the client starts other work."""
    made, later = [], dict[int, float]()
    for span in reversed(spans):
        until = later.get(span.client, np.inf)
        made.append(replace(span, end=until, lost=True) if until < span.end - 1e-9 else span)
        later[span.client] = span.start
    return made[::-1]


@dataclass(frozen=True)
class Timeline:
    """A run over time.

    Attributes:
        spans: of work.
        rounds: when each ended, seconds.
    """

    spans: list[Span]
    rounds: list[float]

    @property
    def busy(self) -> float:
        """Return the share of the clients' time until the last round's end spent on replies that arrive."""
        end = self.rounds[-1]
        clients = 1 + max(span.client for span in self.spans)
        spent = sum(min(s.end, end) - s.start for s in self.spans if not s.lost and s.start < end)
        return spent / (clients * end)


def timeline(pace: str, rounds: int = 60, seed: int = 5) -> Timeline:
    """Run six clients, one of them ten times slower than the fastest, each losing one in five of its updates; two replies per round.

    Args:
        pace: ``"FedAvg"`` (three asked per round, deadline of 600 s), ``"SAFA"`` or ``"FedBuff"``.
        rounds: most rounds; fewer are shown.
        seed: of crashes and selections.
    """
    import atoll
    from atoll import devices
    from atoll.learn.pacing import SAFA, FedBuff
    from atoll.learn.selection import CFCFM

    speeds = [1.0, 0.8, 0.55, 0.4, 0.2, 0.1]
    trace = devices.GeneratedTrace(0.2, point="uniform", seed=seed)
    fleet = devices.Fleet(
        devices.BatchRate(devices.GivenTraits(speeds), batch=24), devices.Throughput(500_000.0), trace,
        model_bytes=10e6, model_over=256, seed=seed,  # a note to go on is no model
    )  # fmt: skip
    witness = _Witness(fleet)
    kinds: Mapping[str, Any] = {
        "FedAvg": {"pacing": atoll.Synchronous(deadline=600.0), "selection": atoll.Uniform(3)},
        "SAFA": {"pacing": SAFA(deadline=600.0), "selection": CFCFM(2)},
        "FedBuff": {"pacing": FedBuff(buffer=2, refill="arrival"), "selection": atoll.Uniform(6)},
    }
    rows = atoll.data.digits(test=0.0).take(np.arange(6 * 48))
    islands = atoll.data.Islands.from_owner(rows, np.repeat(np.arange(6), 48), 6, scheme="equal")
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=atoll.FedAvg(lr=0.05, epochs=12, batch_size=24),
        evaluation=atoll.Evaluation(server=False),
        rounds=rounds,
        **kinds[pace],
    )
    made = atoll.simulate(job, islands, devices=witness, engine="inline", seed=seed)
    return Timeline(_cut(witness.spans), [float(row["t_end"]) for row in made.metrics])
