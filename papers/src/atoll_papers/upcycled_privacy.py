"""Private Upcycled-FL: loss at equal budgets and iterations, with noise in the output and in the objective.

Source: Yin, Zhang, Zhang and Liu, "Federated Learning with Reduced Information Leakage and Computation", section 7 and
appendix F, figures 3 and 4 (their data are lost in our copy: the claims are those of the text). No stragglers, every
client in every round, T = 80 for both.

Our choices: the noise follows from the budget by the always-valid sensitivity (2 tau with tau = 1; the theorem for a
bias and two outputs, whose features have norm up to 2), so budgets are large; clients have at most 150 rows, of norm at
most 1, and two local epochs, so that local solves are not exact: for objective perturbation the guarantee is that of
the exact minimisers. Learning rates: the best of three on validation rows, for both.
"""

from __future__ import annotations

from atoll.reproduce import Claim, Entry, Lab

from .upcycled.private import private
from .upcycled.table import SOURCE

__all__ = ["ENTRY"]


def _run(lab: Lab, quick: bool) -> list[Claim]:
    if quick:
        return private(lab, {"output": (300.0,)}, ("iid",), 2, (0.2,), iterations=10, rows=60)
    budgets = {"output": (30.0, 100.0, 300.0), "objective": (100.0, 300.0, 1000.0)}
    return private(lab, budgets, ("iid", "0.5,0.5"), 4)


ENTRY = Entry(
    name="upcycled-privacy",
    title="Private Upcycled-FL: loss at equal budgets, output and objective perturbation",
    source=f"{SOURCE}, section 7",
    run=_run,
)
