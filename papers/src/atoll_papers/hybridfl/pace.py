"""HybridFL's slack estimators, and Atoll's additions, on the waist and the thesis's devices, without training: a table of times and waste."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atoll.algorithms import FedAvg
from atoll.devices import Fleet, Normal, Power, Recorded, mec
from atoll.learn.pacing.slack import ChanceConstrained, Forgetting, LateCount, PaperLiteral, Ratio, UncensoredOnly
from atoll.learn.training import Training
from atoll.models.idle import IdleIslands, IdleModel
from atoll.pacing import HybridFL
from atoll.rounds.history import History
from atoll.selection import Uniform
from atoll.simulation import simulate
from atoll.topology import Hierarchical

from .paper import DIGITS, HybridSetting
from .reference import limit, region_sizes

__all__ = ["DRIFT", "PACES", "RecordedPace", "held", "measured", "table"]


DRIFT = "0.1 -> 0.6"
"""Drop-out that changes half-way."""


PACES: dict[str, HybridFL] = {
    "published (PaperLiteral)": HybridFL(slack=PaperLiteral()),
    "Ratio": HybridFL(slack=Ratio()),
    "UncensoredOnly": HybridFL(slack=UncensoredOnly()),
    "LateCount, with hindsight": HybridFL(slack=LateCount(), hindsight=True),
    "LateCount": HybridFL(slack=LateCount()),
    "Forgetting(0.9)": HybridFL(slack=Forgetting(memory=0.9)),
    "ChanceConstrained(0.1)": HybridFL(slack=ChanceConstrained(delta=0.1)),
    "ChanceConstrained(0.1), joint": HybridFL(slack=ChanceConstrained(delta=0.1), joint=True),
    "ChanceConstrained(0.1, Forgetting(0.9)), joint": HybridFL(
        slack=ChanceConstrained(delta=0.1, base=Forgetting(memory=0.9)), joint=True
    ),
    "ChanceConstrained(0.1), most=1": HybridFL(slack=ChanceConstrained(delta=0.1), most=1.0),
}
"""The compared paces; each gets the setting's time limit."""


@dataclass(frozen=True)
class RecordedPace:
    """The cost of a pace, as means over rounds and seeds.

    Attributes:
        seconds: of a round.
        missed: share of rounds whose quota was not met.
        selected: clients invited per round.
        watt_hours: energy of a round, all clients together.
        spread: how unevenly regions take part: standard deviation over regions of submissions per client in the whole
            run, over their mean.
    """

    seconds: float
    missed: float
    selected: float
    watt_hours: float
    spread: float


def held(
    pace: HybridFL, drop: float | str, share: float, seed: int, *, setting: HybridSetting = DIGITS, rounds: int = 200
) -> History:
    """Hold rounds without training.

    Args:
        pace: the pace; the setting's limit replaces its deadline.
        drop: ``E[dr]``, or `DRIFT`.
        share: ``C``.
        seed: of devices, drop-outs and selections.
        setting: a column of Table 4.2.
        rounds: number of rounds.
    """
    sizes = region_sizes(setting, np.random.default_rng([seed, 0]))
    ends = np.cumsum(sizes)
    groups = tuple(tuple(range(end - n, end)) for end, n in zip(ends.tolist(), sizes.tolist(), strict=True))
    draw = np.random.default_rng([seed, 1]).normal(*setting.samples, setting.clients)
    least = setting.samples[0] - 3 * setting.samples[1]
    data = IdleIslands(np.maximum(1, np.rint(np.maximum(draw, least))).astype(np.int64))
    options = {name: getattr(pace, name) for name in ("slack", "theta", "most", "joint", "hindsight")}
    job = Training(
        model=IdleModel(),
        algorithm=FedAvg(epochs=setting.epochs),
        topology=Hierarchical(groups=groups),
        selection=Uniform(share),
        pacing=HybridFL(**options, deadline=limit(setting)),
        rounds=rounds,
    )
    made: History = simulate(job, data, devices=_fleet(setting, drop, seed, rounds), seed=seed).metrics
    return made


def _fleet(setting: HybridSetting, drop: float | str, seed: int, rounds: int) -> Fleet:
    """Return the thesis's devices; with `DRIFT`, the drop-outs of two of its fleets, one after the other."""

    def fleet(mean: float) -> Fleet:
        drops = Normal(mean, setting.drop_spread, low=0.0, high=1.0)
        made = mec(setting.name, drops, edges=setting.regions, seed=seed)  # type: ignore[arg-type]
        return replace(made, power=Power(stopped="full"))  # as the thesis counts

    if drop != DRIFT:
        return fleet(float(drop))
    before, after = (fleet(mean).record(rounds, setting.clients) for mean in (0.1, 0.6))
    half = rounds // 2 + 1
    crashed = np.concatenate([before.crashed[:half], after.crashed[half:]])
    point = np.concatenate([before.point[:half], after.point[half:]])
    made = fleet(0.1)
    return Fleet(
        made.compute,
        made.link,
        Recorded(crashed, point, before.span),
        backhaul=made.backhaul,
        model_bytes=made.model_bytes,
        power=made.power,
        regions=made.regions,
        seed=seed,
    )


def measured(
    pace: HybridFL,
    drop: float | str,
    share: float,
    seeds: Iterable[int],
    *,
    setting: HybridSetting = DIGITS,
    rounds: int = 200,
) -> RecordedPace:
    """Return a pace's cost; see `held`."""
    quota = Uniform(share).cohort_size(setting.clients)
    rows = []
    for seed in seeds:
        history = held(pace, drop, share, seed, setting=setting, rounds=rounds)
        sizes = region_sizes(setting, np.random.default_rng([seed, 0]))
        submitted = np.array([[row[f"edge-{r}/submitted"] for r in range(setting.regions)] for row in history])
        heard = submitted.sum(0) / sizes
        rows.append(
            (
                history.average_round_length,
                float(np.mean(submitted.sum(1) < quota)),
                float(np.mean(history.column("selected"))),
                float(np.mean(history.column("energy_wh"))),
                float(heard.std() / heard.mean()),
            )
        )
    return RecordedPace(*np.mean(rows, axis=0).tolist())


def table(
    drops: Sequence[float | str] = (0.3, 0.6, DRIFT),
    share: float = 0.3,
    seeds: Sequence[int] = range(3),
    *,
    setting: HybridSetting = DIGITS,
    rounds: int = 200,
) -> str:
    """Return all paces as a table in Markdown."""
    lines = ["| E[dr] | pace | s a round | below quota | invited | Wh a round | uneven |", "| --- " * 7 + "|"]
    for drop in drops:
        for name, pace in PACES.items():
            cost = measured(pace, drop, share, seeds, setting=setting, rounds=rounds)
            lines.append(
                f"| {drop} | {name} | {cost.seconds:.1f} | {cost.missed:.1%} | {cost.selected:.1f} | {cost.watt_hours:.2f} | {cost.spread:.3f} |"
            )
    return "\n".join(lines)
