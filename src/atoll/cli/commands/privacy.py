"""``atoll privacy``: the epsilon of a mechanism, the noise that an epsilon needs, and the audit of a training."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.app import EXTRAS, app
from atoll.cli.arguments import Json, output_of, sharing
from atoll.cli.privacy_audit import privacy_audit
from atoll.cli.privacy_ledger import privacy_ledger
from atoll.cli.privacy_study import privacy_study
from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from atoll.privacy import NoisePlan

group = typer.Typer(help="Compute what noise costs, and audit what it claims.", no_args_is_help=True)
app.add_typer(group, name="privacy", rich_help_panel=EXTRAS)
group.command("ledger")(privacy_ledger)
group.command("audit")(privacy_audit)
group.command("study")(privacy_study)

Mechanism = Annotated[
    str, typer.Option("--mechanism", help="gaussian, laplace, skellam or discrete-gaussian.", metavar="NAME")
]
Delta = Annotated[float, typer.Option("--delta", help="Delta, in (0, 1).")]
Sampling = Annotated[
    str,
    typer.Option(
        "--sampling",
        help="Who takes part in a step: none (everybody), poisson:Q (each with probability Q) or fixed:K/N (K of N).",
    ),
]
DrawnBy = Annotated[
    str,
    typer.Option(
        "--drawn-by",
        help="Who knows the sample: public, server or party. It counts only against those who do not know it.",
    ),
]
Steps = Annotated[int, typer.Option("--steps", help="Number of releases.", min=1)]
Sensitivity = Annotated[
    float, typer.Option("--sensitivity", help="How far one unit moves a release: in L2, for laplace in L1.")
]
Values = Annotated[int, typer.Option("--values", help="Entries of a release; matters for discrete noise.", min=1)]
Unit = Annotated[str, typer.Option("--unit", help="What is protected: user, example or island.")]
Adversary = Annotated[
    str, typer.Option("--adversary", help="From whom: server, clients, or model (whoever gets the model).")
]
Adjacency = Annotated[
    str | None,
    typer.Option(
        "--adjacency",
        help="Neighbours: add-remove or replace-one. By default replace-one for fixed:K/N, else add-remove.",
    ),
]


@dataclass(frozen=True)
class ReleaseOptions:
    """The options that say what is released, how often, and to whom."""

    mechanism: Mechanism
    delta: Delta
    sampling: Sampling = "none"
    drawn_by: DrawnBy = "server"
    steps: Steps = 1
    sensitivity: Sensitivity = 1.0
    values: Values = 1
    unit: Unit = "user"
    adversary: Adversary = "model"
    adjacency: Adjacency = None

    def plan(self, noise: float) -> NoisePlan:
        """Return the plan with this noise."""
        from atoll.privacy import NoisePlan

        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("sampling", "adjacency")}
        rate, scheme = _sample(self.sampling)
        neighbours = self.adjacency or ("replace-one" if scheme == "fixed" else "add-remove")
        return NoisePlan(**given, noise=noise, sampling=rate, scheme=scheme, neighbours=neighbours)


@group.command("epsilon")
@sharing(ReleaseOptions)
def epsilon(
    context: typer.Context,
    noise: Annotated[
        float, typer.Option("--noise", help="Standard deviation of the noise; for laplace its scale.", metavar="S")
    ],
    options: ReleaseOptions,
    json: Json = False,
) -> None:
    """Compute epsilon by both accountants: Rényi (rdp) and privacy loss distributions (pld)."""
    _give(context, options.plan(noise), {})


@group.command("noise")
@sharing(ReleaseOptions)
def noise(
    context: typer.Context,
    epsilon: Annotated[float, typer.Option("--epsilon", help="The epsilon to keep.", metavar="E")],
    options: ReleaseOptions,
    accountant: Annotated[str, typer.Option("--accountant", help="Which epsilon to keep: pld or rdp.")] = "pld",
    json: Json = False,
) -> None:
    """Compute the smallest noise that keeps an epsilon."""
    from atoll.privacy import noise_for

    found = noise_for(options.plan(1.0), epsilon, accountant)
    _give(context, found, {"epsilon": epsilon, "accountant": accountant})


def _sample(text: str) -> tuple[float, str]:
    """The rate and the scheme of ``none``, ``poisson:Q`` or ``fixed:K/N``."""
    scheme, _, value = text.partition(":")
    try:
        if text == "none":
            return 1.0, "poisson"
        if scheme == "poisson":
            return float(value), scheme
        if scheme == "fixed":
            some, _, whole = value.partition("/")
            if 0 < int(some) <= int(whole):
                return int(some) / int(whole), scheme
    except ValueError:
        pass
    raise ConfigError(
        f"sampling={text!r}",
        where="--sampling",
        remedy="use none, poisson:Q with Q in (0, 1], or fixed:K/N with K <= N",
    )


def _give(context: typer.Context, plan: NoisePlan, asked: dict[str, Any]) -> None:
    found = {"rdp": plan.epsilon("rdp"), "pld": _by_loss(plan)}
    setting = {name: getattr(plan, name) for name in ("mechanism", "noise", "sensitivity", "values", "steps", "delta")}
    drawn = {"sampling": plan.sampling, "scheme": plan.scheme, "drawn_by": plan.drawn_by, "amplified": plan.amplified}
    meaning = {"adjacency": plan.neighbours, "unit": plan.unit, "adversary": plan.adversary}
    shown = "not known" if found["pld"] is None else f"{found['pld']:.4f}"
    text = f"{plan.mechanism} noise {plan.noise:.6g}, {plan.steps} steps, delta {plan.delta:g}: epsilon {shown} (pld), {found['rdp']:.4f} (rdp)"
    text += f"\nIt protects one {plan.unit}, neighbours by {plan.neighbours}, from: {plan.adversary}."
    if plan.sampling < 1 and not plan.amplified:
        text += "\nThe sampling does not count: the adversary knows it, or it does not fit the neighbours."
    output_of(context).give({**asked, **found, **meaning, **setting, **drawn}, text)


def _by_loss(plan: NoisePlan) -> float | None:
    """Epsilon by loss distributions; ``None`` for discrete noise on vectors, whose worst pair is not known."""
    if plan.mechanism in ("skellam", "discrete-gaussian") and plan.values > 1:
        return None
    return plan.epsilon("pld")
