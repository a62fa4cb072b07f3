"""The study's claims: every method in every cell, each against SAFA as published, and what explains the differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atoll.reproduce import Claim, Lab

from .study import CAP, PLANS, QUICK, Found, SafaCell, compared, number, study
from .study_methods import COMPAT_TIME, METHODS, PUBLISHED

__all__ = ["claims"]


def claims(lab: Lab, quick: bool) -> list[Claim]:
    """Every method in every cell, then each against SAFA as published, and what explains the differences."""
    plans = QUICK if quick else PLANS
    found = study(lab, plans)
    rounds = {plan.task: plan.rounds for plan in plans}
    made = [_cell(found, *key, rounds[key[0].task]) for key in found]
    ran = {cell for cell, _ in found}
    absent = [cell for plan in plans for cell in plan.cells if cell not in ran]
    made += [Claim(f"{cell}: all methods", None, None, None, "a run of it is not kept") for cell in absent]
    for rate in sorted({plan.rate for plan in plans}):
        part = {key: runs for key, runs in found.items() if key[0].rate == rate}
        missing = sum(cell.rate == rate for cell in absent)
        suffix = "" if rate == 1 else f" (rate x {rate:g})"
        judged = _against(part, missing) + _why(part, missing) if part else []
        made += [replace(claim, claim=claim.claim + suffix) for claim in judged]
    return made


def _cell(found: Found, cell: SafaCell, method: str, rounds: int) -> Claim:
    runs = found[cell, method]
    costs = {name: np.mean([run.costs()[name] for run, _ in runs]) for name in runs[0][0].costs()}
    ends = [run.until(target) for run, target in runs]
    came = sum(np.isfinite(end["rounds"]) for end in ends)

    def mean(name: str) -> str:
        return number(float(np.mean([end[name] for end in ends])))

    told = ", ".join(f"{name} {value:.4g}" for name, value in costs.items())
    return Claim(
        f"{cell}: {method}",
        None,
        f"{mean('seconds')} s, {mean('rounds')} rounds, {mean('down')} models down, {mean('up')} up, {mean('work')} updates; a round: {told}",
        came == len(runs),
        f"until it is where FedAvg is in {rounds} rounds, within {CAP * rounds}; {came} of {len(runs)} seeds came there; {METHODS[method]}",
    )


def _against(found: Found, missing: int) -> list[Claim]:
    made = []
    for method in METHODS:
        if method == PUBLISHED:
            continue
        verdict = compared(found, method, PUBLISHED)
        made.append(
            Claim(
                f"{method}: sooner at the target than SAFA as published under the clock",
                None,
                verdict.told(),
                verdict.holds(missing),
                f"ratio of seconds: {verdict.where()}; better: all seeds, and 5 % in the mean; holds if better in most cells and worse in none{_left(missing)}",
            )
        )
    return made


def _why(found: Found, missing: int) -> list[Claim]:
    pairs = (
        (PUBLISHED, "FedAvg, absent keep global", "seconds", "SAFA as published is sooner there than the thesis' FedAvg"),
        (PUBLISHED, "FedAvg", "seconds", "SAFA as published is sooner there than FedAvg that averages whoever answered"),
        (PUBLISHED, "FedAvg", "rounds", "SAFA as published needs fewer rounds than FedAvg that averages whoever answered"),
        (PUBLISHED, "FedAvg", "up", "SAFA as published uploads fewer models than FedAvg that averages whoever answered"),
        ("FedAvg", "FedAvg, absent keep global", "rounds", "FedAvg needs fewer rounds if absent clients do not stand in with the old model"),
        ("SAFA, bounded", PUBLISHED, "up", "bounded: fewer models uploaded"),
        ("SAFA", PUBLISHED, "up", "SAFA whose slow clients work on: fewer models uploaded"),
        ("SAFA", PUBLISHED, "work", "SAFA whose slow clients work on: less computed by clients"),
        ("SAFA, adaptive lag", "SAFA", "seconds", "adaptive lag against a tolerance of 5, both without foresight"),
        ("SAFA, by age", "SAFA", "seconds", "weights by age against equal ones, both without foresight"),
        ("SAFA, bounded", "SAFA", "seconds", "calling off against working on, both without foresight"),
        (COMPAT_TIME, PUBLISHED, "seconds", "the tables' accounting makes the same rounds shorter"),
        ("FedBuff", "SAFA", "seconds", "FedBuff is sooner there than SAFA, both without foresight"),
        ("FedBuff", PUBLISHED, "up", "FedBuff uploads fewer models than SAFA as published"),
    )  # fmt: skip
    made = []
    for method, base, quantity, text in pairs:
        verdict = compared(found, method, base, quantity)
        note = f"ratio of {quantity} until the target, {method} : {base}: {verdict.where()}; holds if better in most cells and worse in none{_left(missing)}"
        made.append(Claim(text, None, verdict.told(), verdict.holds(missing), note))
    return made


def _left(missing: int) -> str:
    return f"; {missing} cells are not run" if missing else ""
