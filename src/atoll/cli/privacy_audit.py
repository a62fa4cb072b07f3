"""``atoll privacy audit``: a training with canaries, and the epsilon that they prove."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .arguments import Json, output_of

if TYPE_CHECKING:
    from atoll.data import Islands

__all__ = ["privacy_audit"]

_USERS = 100


def privacy_audit(
    context: typer.Context,
    epsilon: Annotated[float, typer.Option("--epsilon", help="The epsilon that the training claims.", metavar="E")],
    canaries: Annotated[int, typer.Option("--canaries", help="Users that a coin lets in.", metavar="M", min=2)] = 1000,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Arrays x and y of the other users' data, an .npz file; by default the digits.",
            metavar="FILE.npz",
        ),
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Delta of the claim, in (0, 1).")] = 1e-5,
    confidence: Annotated[float, typer.Option("--confidence", help="Confidence of the lower bound.")] = 0.95,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of the training.", min=1)] = 2,
    sabotage: Annotated[
        float, typer.Option("--sabotage", help="Multiply the noise by F behind the ledger's back.", metavar="F")
    ] = 1.0,
    tradeoff: Annotated[
        str,
        typer.Option(
            "--tradeoff",
            help="What is refuted: one (epsilon, delta): approximate; or Gaussian noise, with a tighter bound: gaussian.",
            metavar="CURVE",
        ),
    ] = "approximate",
    guesses: Annotated[
        int | None,
        typer.Option("--guesses", help="Guess so many coins, the surest; by default half of them.", metavar="R", min=1),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Keep the run there; `atoll report` shows the audit.")
    ] = None,
    json: Json = False,
) -> None:
    """Train with canaries, guess which took part, and prove a lower bound of epsilon."""
    from atoll.auditing import Canaries, audit
    from atoll.auditing.central import central

    settings = Canaries(count=canaries, guesses=guesses, confidence=confidence, tradeoff=tradeoff)  # type: ignore[arg-type]
    found = audit(
        lambda planted: central(planted, epsilon, delta, rounds, sabotage),
        _users(data),
        settings,
        delta=delta,
        folder=folder,
    )
    plan = {"rounds": rounds, "sabotage": sabotage}
    terms = f"Unit {found.unit}, neighbours {found.neighbours}, adversary: {found.adversary}."
    output_of(context).give({**found.plain(), **plan}, f"{found.verdict}\n{terms}")


def _users(path: Path | None) -> Islands:
    """The users that are there anyway."""
    import atoll.data

    rows = atoll.data.digits() if path is None else atoll.data.read_npz(path, flat=True)
    return atoll.data.iid(rows, parties=min(_USERS, len(rows)), seed=0)
