"""``atoll privacy study``: accuracy against epsilon over one data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .arguments import Json, output_of

__all__ = ["privacy_study"]


def privacy_study(
    context: typer.Context,
    data: Annotated[
        str, typer.Argument(help="Arrays x and y, an .npz file; or the name of a bundled data set.", metavar="DATA")
    ] = "digits",
    epsilon: Annotated[
        list[float] | None, typer.Option("--epsilon", help="An epsilon; repeat it for several.", metavar="E")
    ] = None,
    mechanism: Annotated[
        list[str] | None, typer.Option("--mechanism", help="A mechanism; repeat it; by default all.", metavar="NAME")
    ] = None,
    parties: Annotated[int, typer.Option("--parties", help="Clients that the rows are dealt to.", min=2)] = 20,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of each training.", min=1)] = 10,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each training.", min=1)] = 2,
    delta: Annotated[float, typer.Option("--delta", help="Delta of the claims, in (0, 1).")] = 1e-5,
    clip: Annotated[float, typer.Option("--clip", help="The clip of every mechanism.")] = 1.0,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write a page with the plot.", metavar="FILE.html")
    ] = None,
    json: Json = False,
) -> None:
    """Train with each mechanism at each epsilon, and show what privacy costs in accuracy."""
    import atoll.data
    from atoll.auditing import privacy_cost
    from atoll.core.errors import ConfigError

    if data.endswith(".npz"):
        rows = atoll.data.read_npz(Path(data), flat=True)
    elif data in _BUNDLED:
        rows = getattr(atoll.data, data)()
    else:
        raise ConfigError(
            f"DATA {data!r}", where="atoll privacy study", remedy=f"use a file .npz, or one of {', '.join(_BUNDLED)}"
        )
    chosen = {"parties": parties, "rounds": rounds, "seeds": seeds, "delta": delta, "clip": clip}
    found = privacy_cost(rows, epsilon or (1.0, 4.0, 16.0), mechanism or (), **chosen)  # type: ignore[arg-type]
    written = {} if report is None else {"report": str(found.report(report))}
    tail = f"\nThe plot is in {report}" if report is not None else ""
    output_of(context).give({**found.plain(), **written}, f"{found}{tail}")


_BUNDLED = ("digits", "iris")
