"""The report as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll.core.errors import CheckpointError
from atoll.core.extras import need
from atoll.core.overview import human_bytes
from atoll.core.persistence.files import write_bytes

from .facts import Facts, facts_of
from .figures import bytes_figure, clients_figure, comparison_figure, curves_figure, partition_figure
from .privacy import meaning, privacy_figure
from .scalars import flat
from .sections import drawn
from .taking_part import devices_figure

__all__ = ["render", "write_report"]


def write_report(source: Any, path: str | Path | None = None) -> Path:
    """Write the report of a run.

    Args:
        source: a ``Result``, a ``RunFolder``, or the path of a run folder.
        path: the file to write; by default ``report.html`` in the run folder, or ``atoll-report.html`` here.

    Returns:
        The page's path.

    Raises:
        MissingExtraError: Matplotlib or Jinja2 is not installed.
        CheckpointError: the folder cannot be read, or the page cannot be written.
    """
    facts = facts_of(source)
    target = Path(path) if path is not None else _place(source)
    page = render(
        "report.html.j2",
        facts=facts,
        figures=_figures(facts),
        sections=drawn(facts.sections),
        tiles=_tiles(facts),
        verdict=verdict(facts),
        audited=_audited(facts),
        meaning=meaning(facts.privacy),
        caveat=CAVEAT,
        engine=_engine(facts),
    )
    try:
        write_bytes(target, page.encode("utf-8", "replace"))
    except CheckpointError as error:
        raise CheckpointError(error.what, where=error.where, remedy="free space or choose another --output") from error
    return target


def _place(source: Any) -> Path:
    from atoll.runs import RunFolder

    folder = source if isinstance(source, RunFolder) else None
    if isinstance(source, str | Path):
        folder = RunFolder(source)
    return folder.report_file if folder is not None else Path("atoll-report.html")


def render(template: str, **values: Any) -> str:
    """Fill a template of this package. Text is escaped everywhere, also in attributes; a `InlineFigure` is put in as it is. No script runs in the page: its policy allows none."""
    jinja2 = need("jinja2", "report", "a report", where="atoll.report")
    loader = jinja2.PackageLoader("atoll.report", "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"bytes": human_bytes, "percent": _percent, "number": _number, "moment": _moment}
    return str(environment.get_template(template).render(**values))


def _figures(facts: Facts) -> dict[str, str | None]:
    return {
        "comparison": comparison_figure(facts),
        "curves": curves_figure(facts),
        "privacy": privacy_figure(facts),
        "clients": clients_figure(facts),
        "devices": devices_figure(facts),
        "partition": partition_figure(facts),
        "bytes": bytes_figure(facts),
    }


def _tiles(facts: Facts) -> list[tuple[str, str, str]]:
    """Headline numbers: label, value, remark."""
    tiles: list[tuple[str, str, str]] = []
    accuracy, best = facts.last("test/accuracy"), facts.best("test/accuracy")
    if accuracy is not None and best is not None:
        tiles.append(("test accuracy", _percent(accuracy), f"best {_percent(best[1])} in round {best[0]}"))
    elif facts.last("test/rmse") is not None:
        tiles.append(("test RMSE", _number(facts.last("test/rmse")), "root of the mean squared error"))
    worst = facts.last("clients/accuracy/worst_decile")
    if worst is not None:
        spread = _percent(facts.last("clients/accuracy/std"))
        tiles.append(
            (
                "worst tenth of clients",
                _percent(worst),
                f"standard deviation {spread}{facts.word_of('clients/accuracy')}",
            )
        )
    if facts.last("epsilon") is not None:
        terms = facts.privacy or {}
        remark = f"one {terms['unit']}, at delta {terms['delta']:g}" if isinstance(terms.get("unit"), str) else "spent"
        tiles.append(("epsilon", _number(facts.last("epsilon")), f"{remark}{facts.word_of('epsilon')}"))
    tiles.append(("rounds", f"{len(facts.rows):,}", facts.reason or facts.status))
    clients = facts.data.get("clients")
    if clients:
        asked = facts.total("selected") / max(1, len(facts.rows))
        tiles.append(("clients", f"{clients:,}", f"{asked:,.4g} asked a round"))
    up, down = (facts.total(name) or facts.bytes.get(name, 0) for name in ("bytes_up", "bytes_down"))
    tiles.append(("sent up", human_bytes(up), f"{human_bytes(down)} down"))
    if facts.seconds is not None:
        tiles.append(("wall-clock time", f"{facts.seconds:,.1f} s", f"engine {facts.engine.get('name', '-')}"))
    return tiles


def _audited(facts: Facts) -> str:
    """What the canaries of a run say, in a sentence."""
    from atoll.privacy.canaries import Audit

    return Audit.of(facts.audit).verdict if facts.audit else ""


def _engine(facts: Facts) -> list[tuple[str, Any]]:
    """Name and choices, one line each."""
    return list(flat(facts.engine).items()) if facts.engine else []


CAVEAT = "The demo's settings were chosen after looking at these test rows: a smoke test, not evidence."
"""Shown with each comparison of the demo."""


def verdict(facts: Facts) -> str:
    """Whether federating was worth it, in a sentence."""
    if not facts.comparison:
        return ""
    alone, federated, pooled = (100 * facts.comparison[name]["accuracy"] for name in ("alone", "federated", "pooled"))
    gain, gap = federated - alone, pooled - federated
    if gain <= 1.0:
        return f"Not here: an island alone reaches {alone:.1f} %, the federation {federated:.1f} %."
    much = f"{abs(gap):.1f} points {'below' if gap >= 0 else 'above'}"
    return (
        f"Yes: the federation gains {gain:.1f} points over an island alone, "
        f"and ends {much} a model trained on everybody's data in one place."
    )


def _percent(share: Any) -> str:
    return "-" if share is None else f"{100 * float(share):.1f} %"


def _number(value: Any) -> str:
    return "-" if value is None else f"{float(value):,.4g}"


def _moment(text: Any) -> str:
    return str(text or "").replace("T", " ").replace("+00:00", " UTC")
