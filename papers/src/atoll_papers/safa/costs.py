"""The thesis's statements about the cost of rounds against the simulated runs, and about the bias of SAFA.

Costs are judged as the tables have them, and again under Eqs. 3.4 and 3.6. The bias (Fig. 3.5) is that of the recurrence with the corrected sign,
and that of the algorithm itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from atoll.learn.pacing.bias import bias, bias_limit, case_of
from atoll.reproduce import Claim

from .grid import SEEDS, GridCost, Key, agrees, grid, row_claims, study
from .paper import STATEMENTS, STUDY, TABLES
from .reference import draw_crashes, safa
from .tasks import BOSTON, CRASHES, FRACTIONS, LAG, SafaTask

__all__ = ["bias_claims", "contributed", "cost_claims", "stated", "study_claims"]


# ------------------------------------------------------------------ the cost of rounds

Grid = Mapping[Key, Mapping[str, GridCost]]
_CLOSE = 0.85
"""A printed speed-up holds if ours is at least this share of it, as it is the largest of many noisy cells."""


def cost_claims(task: SafaTask, seeds: int = SEEDS) -> list[Claim]:
    """Return all claims about the task's rounds: its tables row by row, the statements, and what remains of them under the equations.

    Args:
        task: one of the three.
        seeds: draws of clients and crashes.
    """
    found = grid(task, seeds)
    said = {"boston": _boston, "mnist": _mnist, "kdd": _kdd}[task.name](found)
    if task is BOSTON:
        said.append(_patient(found, seeds))
    return (
        row_claims(task, found, seeds)
        + said
        + _waste(task, found)
        + _corrected(task, found)
        + _by_definition(task, found)
    )


def _speed_up(found: Grid, over: str, quantity: str, fractions: tuple[float, ...] = (0.1, 0.3)) -> tuple[float, str]:
    """Return the largest speed-up of SAFA, and where."""
    ratios = {
        (crash, c): found[over, crash, c][quantity].mean / found["SAFA", crash, c][quantity].mean
        for crash in CRASHES
        for c in fractions
    }
    crash, c = max(ratios, key=lambda key: ratios[key])
    return ratios[crash, c], f"at C = {c:g}, cr = {crash:g}"


def stated(key: str, ours: str, holds: bool, note: str) -> Claim:
    """Return the claim of a statement of the thesis, by its short name."""
    statement = STATEMENTS[key]
    basis = f"line {statement.line}" + (f" ({statement.basis})" if statement.basis else "")
    return Claim(statement.text, statement.number, ours, holds, f"{basis}; {note}")


def _faster(found: Grid, key: str, over: str) -> list[Claim]:
    number = float(STATEMENTS[key].number)
    tables, where = _speed_up(found, over, "length")
    equations, there = _speed_up(found, over, "corrected")
    rule = f"holds from {_CLOSE:g} of it on"
    return [
        stated(
            key,
            f"{tables:.2f} {where}",
            tables >= _CLOSE * number,
            f"by the tables' time accounting, {over} waiting in its own way; {rule}",
        ),
        stated(
            key,
            f"{equations:.2f} {there}",
            equations >= _CLOSE * number,
            f"by Eqs. 3.4 and 3.6, every server waiting for its replies until T_lim; {rule}",
        ),
    ]


def _boston(found: Grid) -> list[Claim]:
    made = []
    for quantity, what in (("length", "by the tables' time accounting"), ("corrected", "by Eqs. 3.4 and 3.6")):
        ratios = [found["FedAvg", cr, 0.1][quantity].mean / found["SAFA", cr, 0.1][quantity].mean for cr in CRASHES]
        ours = ", ".join(f"{r:.2f}" for r in ratios)
        made.append(
            stated("halves", ours, min(ratios) >= _CLOSE * 2, f"{what}; holds from {_CLOSE * 2:g} on at every cr")
        )
    return made


def _patient(found: Grid, seeds: int) -> Claim:
    """Judge which rule the FedAvg rows of Table 3.4 follow."""
    table = TABLES["boston", "length"]
    keys = [("FedAvg", cr, c) for cr in CRASHES for c in FRACTIONS]
    met = {
        rule: sum(agrees(table.cells[key], found[key][rule], 2, seeds) for key in keys)
        for rule in ("patient", "length")
    }
    return Claim(
        "boston: the FedAvg rows of Table 3.4 are those of a server that waits for the slowest client asked, crashed or not, as for FedCS",
        None,
        f"{met['patient']} of {len(keys)} cells; by the rule of tasks 2 and 3, T_lim for a crash, {met['length']}",
        met["patient"] >= len(keys) - 1 > met["length"],
        "ours, from the numbers: cells within 3 standard deviations of a run; holds if all or all but one are",
    )


def _mnist(found: Grid) -> list[Claim]:
    times = {cr: [found["SAFA", cr, c]["distribution"].mean for c in FRACTIONS] for cr in CRASHES}
    across = max(max(row) / min(row) - 1 for row in times.values())
    ours = "; ".join(f"cr {cr:g}: {np.mean(row):.2f} s" for cr, row in times.items())
    one = found["SAFA", 0.1, 0.1]["corrected distribution"].mean
    low = min(np.mean(times[cr]) for cr in (0.1, 0.3))
    note = f"varies by {across:.1%} with C; the tables charge the copies of all rounds so far: one round's take {one:.2f} s at cr = 0.1"
    return [
        *_faster(found, "mnist over FedAvg", "FedAvg"),
        *_faster(found, "mnist over FedCS", "FedCS"),
        stated("distribution", ours, bool(across < 0.05 and low > 10), note),
    ]


def _kdd(found: Grid) -> list[Claim]:
    worst = max(found["SAFA", 0.7, c]["wasted"].mean for c in FRACTIONS)
    closed = "the closed form for tau = 5 is 0.0400; holds up to 0.0405"
    return [
        *_faster(found, "kdd over FedAvg", "FedAvg"),
        *_faster(found, "kdd over FedCS", "FedCS"),
        stated("futility", f"{worst:.4f}", worst <= 0.0405, closed),
    ]


def _waste(task: SafaTask, found: Grid) -> list[Claim]:
    cells = [(a, cr, c) for a in ("FedAvg", "FedCS") for cr in CRASHES for c in FRACTIONS]
    off = max(abs(found[key]["wasted"].mean - key[1] / 2) for key in cells)
    return [
        stated(
            "half",
            f"within {off:.3f} on task {task.number}",
            off <= 0.02,
            "holds if every cell is within 0.02; a crash comes at a point drawn from U(0, 1)",
        ),
        Claim(
            f"{task.name}: SAFA loses less work than FedAvg even where no crashed client goes on from where it was",
            None,
            f"{found['SAFA', 0.7, 1.0]['forgotten'].mean:.3f} : {found['FedAvg', 0.7, 1.0]['forgotten'].mean:.3f} at cr = 0.7",
            found["SAFA", 0.7, 1.0]["forgotten"].mean < 0.9 * found["FedAvg", 0.7, 1.0]["forgotten"].mean,
            "ours; the author's program carries no partial training over, and its futility does not count it; holds below 0.9 of FedAvg's",
        ),
    ]


def _corrected(task: SafaTask, found: Grid) -> list[Claim]:
    """Judge the effect of the tables' rules: SAFA when the quota cannot be met, and FedCS when it waits as FedAvg does."""
    starved = [(cr, c) for cr in CRASHES for c in FRACTIONS if c > 1 - cr + 0.01]
    between = [(cr, c) for cr in CRASHES for c in FRACTIONS if case_of(c, cr) == 2 and c < 1 - cr - 0.01]

    def shortest(keys: list[tuple[float, float]], rule: str) -> float:
        return min(found["SAFA", *key][rule].mean / task.limit for key in keys)

    least = found["SAFA", 0.3, 0.1]["corrected"].mean
    still = found["FedAvg", 0.3, 0.1]["corrected"].mean / least
    fedcs = [found["FedCS", cr, c]["corrected"].mean / found["FedAvg", cr, c]["corrected"].mean for cr in CRASHES for c in FRACTIONS]  # fmt: skip
    return [
        Claim(
            f"{task.name}: a SAFA server that waits for its quota until T_lim loses its advantage where C > 1 - cr",
            None,
            f"rounds of {shortest(starved, 'corrected'):.2f} T_lim or more; by the tables' rule from {shortest(starved, 'length'):.2f}",
            shortest(starved, "corrected") >= 0.9,
            "ours; Algorithm 1 waits, the tables do not; holds if all those rounds last 0.9 T_lim",
        ),
        Claim(
            f"{task.name}: it loses it in case 2 too, where clients without priority fill the quota: they must wait for those who crashed",
            None,
            f"rounds of {shortest(between, 'corrected'):.2f} T_lim or more; by the tables' rule from {shortest(between, 'length'):.2f}",
            shortest(between, "corrected") >= 0.9,
            f"ours; Algorithm 1 to the letter; (cr, C) = {', '.join(f'({cr:g}, {c:g})' for cr, c in between)}; holds from 0.9 T_lim on",
        ),
        Claim(
            f"{task.name}: at small C SAFA's rounds stay shorter than FedAvg's under Eqs. 3.4 and 3.6",
            None,
            f"{still:.1f} times at C = 0.1, cr = 0.3",
            still > 1.5,
            "ours; holds from 1.5 on",
        ),
        Claim(
            f"{task.name}: FedCS's shorter rounds come from not waiting for crashed clients",
            None,
            f"{min(fedcs):.2f} to {max(fedcs):.2f} of FedAvg's under one rule",
            min(fedcs) >= 0.9,
            "ours; both wait until T_lim for a reply that never comes; holds if FedCS needs 0.9 or more everywhere",
        ),
    ]


def _by_definition(task: SafaTask, found: Grid) -> list[Claim]:
    """Judge the SR of FedAvg by Eq. 3.12."""
    ours = [found["FedAvg", 0.1, c]["copies"].mean for c in FRACTIONS]
    return [
        Claim(
            f"{task.name}: FedAvg's SR is C",
            " ".join(f"{c:g}" for c in FRACTIONS),
            " ".join(f"{r:g}" for r in ours),
            all(abs(c - r) < 1e-9 for c, r in zip(FRACTIONS, ours, strict=True)),
            "by Eq. 3.12: copies sent, of all clients; the table's T_dist counts ceil(C N) copies too",
        )
    ]


def study_claims(seeds: int = SEEDS) -> list[Claim]:
    """Judge the study of the tolerance on task 1, against the author's sheet behind Figs. 3.3 and 3.4."""
    lags = sorted({key[3] for key in STUDY})
    names = {"synchronised": ("SR", 3), "effective": ("EUR", 3), "variance": ("VV", 3)}
    ours = {(c, cr, lag): study(BOSTON, c, cr, lag, seeds) for c, cr in ((0.1, 0.3), (0.1, 0.7), (0.5, 0.3), (1.0, 0.7)) for lag in lags}  # fmt: skip
    made = []
    for quantity, (short, digits) in names.items():
        for c, cr in dict.fromkeys((key[1], key[2]) for key in STUDY if key[0] == quantity):
            found = [ours[c, cr, lag][quantity] for lag in lags]
            printed = [STUDY[quantity, c, cr, lag] for lag in lags]
            met = [agrees(p, cost, digits, seeds) for p, cost in zip(printed, found, strict=True)]
            made.append(
                Claim(
                    f"boston: {short} by tolerance, C = {c:g}, cr = {cr:g}",
                    " ".join(f"{p:.3f}" for p in printed),
                    " ".join(f"{cost.mean:.3f}±{cost.spread:.3f}" for cost in found),
                    all(met),
                    f"tau = {', '.join(map(str, lags))}; the author's sheet; {sum(met)} of {len(met)} within 3 standard deviations of a run, {seeds} draws",
                )
            )
    return [*made, _tolerance(ours, lags)]


def _tolerance(ours: Mapping[tuple[float, float, int], Mapping[str, GridCost]], lags: list[int]) -> Claim:
    def row(crash: float, quantity: str) -> list[float]:
        return [ours[0.1, crash, lag][quantity].mean for lag in lags]

    def grown(crash: float, quantity: str) -> float:
        return max(row(crash, quantity)) - min(row(crash, quantity))

    both = (0.3, 0.7)
    falls = all(row(cr, "synchronised") == sorted(row(cr, "synchronised"), reverse=True) for cr in both)
    flat = all(grown(cr, "effective") < 1e-9 for cr in both)
    grows = all(row(cr, "variance") == sorted(row(cr, "variance")) for cr in both)
    faster = grown(0.7, "variance") > grown(0.3, "variance")
    text = f"SR falls: {falls}; EUR is flat: {flat}; VV grows: {grows}, faster at 0.7: {faster}"
    return stated("tolerance", text, falls and flat and grows and faster, f"C = 0.1; the default is {LAG}")


# ------------------------------------------------------------------ Fig. 3.5: the bias of SAFA

_CRASH = 0.3
_FRACTIONS = {2: 0.55, 3: 0.1}
"""A fraction ``C`` in each case, for clients that crash with probability 0.3."""
_CLIENTS, _ROUNDS, _SEED = 100, 3000, 5


def contributed(case: int, crash: float = _CRASH, rounds: int = _ROUNDS) -> float:
    """Run SAFA with 100 clients of different speeds, and return how often the fastest contributed, over how often the slowest did.

    A client contributes to a round if it is picked, or if its update from the round before waits in the cache and it is not picked.

    Args:
        case: 2 or 3.
        crash: every client's probability to crash in a round.
        rounds: rounds to run.
    """
    draw = np.random.default_rng(_SEED)
    made = safa(draw_crashes(rounds, _CLIENTS, crash, draw), np.arange(1.0, _CLIENTS + 1), _FRACTIONS[case], LAG)
    used = made.picked[1:] | (made.undrafted[:-1] & ~made.picked[1:])
    fastest, slowest = used[:, 0].mean(), used[:, -1].mean()
    return float(fastest / slowest)


def bias_claims() -> list[Claim]:
    """Judge Fig. 3.5 with the corrected sign of the closed form; limits for equal probabilities of crash of 0.3."""
    return [_case(2, lambda ratio: ratio < 1), _case(3, lambda ratio: ratio > 1), _converges(_CRASH)]


def _case(case: int, holds: Callable[[float], bool]) -> Claim:
    limit, ran = bias_limit(case, _CRASH, _CRASH), contributed(case)
    note = (
        f"simulated: fastest over slowest client, {_CLIENTS} clients, C = {_FRACTIONS[case]:g}, cr = {_CRASH:g}, {_ROUNDS} rounds; "
        "by the recurrence in brackets; above 1 the fastest client contributes more often; FedAvg has 1"
    )
    return stated(f"bias {case}", f"{ran:.3f} ({limit:.3f})", holds(ran) and holds(limit), note)


def _converges(crash: float, last: int = 60) -> Claim:
    """Judge from which round on the bias of both cases stays within 3 % of its final value."""
    limits = {case: bias_limit(case, crash, crash) for case in (2, 3)}
    off = {r: max(abs(bias(case, crash, crash, r) / limits[case] - 1) for case in limits) for r in range(2, last + 1)}
    far = [r for r in off if off[r] > 0.03]
    since = max(far, default=1) + 1
    ours = f"within {off[10]:.3f} of its limit in round 10, within 0.03 from round {since} on"
    note = f"cases 2 and 3 by the recurrence, cr = {crash:g}, up to round {last}; holds if within 0.03 from round 10 on"
    return stated("bias converges", ours, since <= 10, note)
