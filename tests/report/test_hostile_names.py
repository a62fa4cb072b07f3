"""Every page that Atoll writes, from names that try to run a script: columns, classes, sites, jobs, metrics, notes, settings."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError
from atoll.core.overview import Overview
from atoll.data import Dataset, Islands
from atoll.report import write_comparison, write_report
from atoll.report.figures import _VARIABLES, InlineFigure, _inline, figure
from atoll.report.progress import NotebookBar
from atoll.reproduce import Claim, write_block
from atoll.runs import RunFolder, execute, parse_config
from atoll.statistics import Statistics
from atoll.study.privacy import CostPoint, PrivacyCost
from tests.support.browser import CHROMIUM, tab
from tests.support.small_run import small

NAMES = (
    '"><img src=x onerror=window.owned=1>',
    "'><svg onload=window.owned=1>",
    "</title></style><script>window.owned=1</script>",
    "\" onmouseover=window.owned=1 x='",
    "'DejaVu Sans</text><script>window.owned=1</script>",
    "$\\frac{1}$ {{ 7 * 7 }} <!-- --> ]]> &lt;script&gt; \x00\x1b \U0001f600",
)
SAFE = {"default-src 'none'", "style-src 'unsafe-inline'", "img-src data:", "base-uri 'none'", "form-action 'none'"}


class Tags(HTMLParser):
    """The tags of a page, and what its policy says."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.policy: set[str] = set()
        self.text = ""
        self.labels: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        assert tag not in ("script", "img", "iframe", "object", "embed", "foreignobject", "base", "form", "a"), tag
        assert not [name for name in named if name.startswith("on")], named
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert str(named.get(name, "#")).startswith(("#", "data:,")), named
        if tag == "meta" and named.get("http-equiv") == "Content-Security-Policy":
            self.policy = set(str(named["content"]).split("; "))
        if tag == "svg" and named.get("aria-label"):
            self.labels.append(str(named["aria-label"]))

    def handle_data(self, data: str) -> None:
        self.text += data


def _statistics(path: Path) -> Path:
    draw = np.random.default_rng(0)
    table = {
        NAMES[0]: draw.normal(size=60), NAMES[1]: draw.choice(NAMES[:3], 60), NAMES[4]: draw.normal(size=60),
        NAMES[5]: draw.choice([NAMES[3], NAMES[5].replace("\x00", "")], 60),
    }  # fmt: skip
    job = Statistics(bins=4, quantiles=[0.5], drift=True, correlations=True, by=[NAMES[5]], request=NAMES[2])
    sites = {name: {key: values[k::3] for key, values in table.items()} for k, name in enumerate(NAMES[:3])}
    return atoll.simulate(job, sites, engine="inline", progress=False).report(path)


def _training(path: Path) -> Path:
    draw = np.random.default_rng(0)
    labels = [f"{k} {NAMES[k]}".replace("\x00", "") for k in range(3)]
    parts = {
        f"{k} {name}": Dataset({"x": draw.normal(size=(30, 4)), "y": draw.integers(0, 3, 30)}, labels=labels, name=name)
        for k, name in enumerate(NAMES[:3])
    }
    islands = Islands.from_datasets(parts, test=next(iter(parts.values())))
    job = atoll.Training(
        model=atoll.models.linear(4, 3),
        algorithm=atoll.FedAvg(lr=0.1),
        rounds=2,
        evaluation=atoll.Evaluation(clients=-1),
    )
    result = atoll.simulate(job, islands, engine="inline", progress=False)
    for row in result.metrics.rows:
        row["rejected_clients"] = {NAMES[0]: NAMES[1]}
        row["outlying_clients"] = {NAMES[2]: NAMES[3]}
        row["epsilon"] = 1.0
    return result.report(path)


def _runs(folder: Path) -> list[RunFolder]:
    """Two finished runs whose name, settings, error and rows were written by somebody else."""
    made = []
    for k in range(2):
        run = RunFolder(folder / f"run {k}")
        execute(parse_config({**small(), "rounds": 2, "seed": k}), run, report=False)
        for file in run.path.rglob("*.json*"):
            text = file.read_text(encoding="utf-8")
            for word, name in (("small", NAMES[k]), ("FedAvg", NAMES[2]), ("iris", NAMES[4]), ("setosa", NAMES[1])):
                quoted = name.replace("\\", "\\\\").replace('"', '\\"').replace("\x00", "\\u0000").replace("\x1b", "")
                text = text.replace(word, quoted)
            file.write_text(text, encoding="utf-8")
        made.append(RunFolder(run.path))
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each kind of page."""
    folder = tmp_path_factory.mktemp("pages")
    runs = _runs(folder)
    terms = {"clients": NAMES[3], "rounds": 1, "seeds": 1, "clip": NAMES[4]}
    points = (CostPoint(NAMES[0], 1.0, 0.5, 0.1, NAMES[1]), CostPoint(NAMES[4], 10.0, 0.6, 0.1, NAMES[3]))
    PrivacyCost(NAMES[2], terms, 0.9, 0.1, points).report(folder / "cost.html")
    notebook = [Overview(NAMES[0], {NAMES[1]: NAMES[2]}).html()]
    bar = NotebookBar(NAMES[0], 3)
    bar._last = (1, NAMES[4])
    (folder / "cells.html").write_text("\n".join([*notebook, bar._repr_html_()]), encoding="utf-8")
    return {
        "statistics": _statistics(folder / "statistics.html"),
        "training": _training(folder / "training.html"),
        "run": write_report(runs[0], folder / "run.html"),
        "comparison": write_comparison(runs, folder / "comparison.html"),
        "cost": folder / "cost.html",
        "cells": folder / "cells.html",
    }


def test_no_name_becomes_markup_and_no_page_allows_a_script(made: dict[str, Path]) -> None:
    for kind, page in made.items():
        text = page.read_text(encoding="utf-8")
        found = Tags(text)
        assert "window.owned=1" in found.text or found.labels, kind  # the names are there, as text
        assert kind == "cells" or found.policy == SAFE
        assert "49" not in re.findall(r"\{\{ 7|49 <!--", text)
    assert any(NAMES[0] in label for label in Tags(made["statistics"].read_text(encoding="utf-8")).labels)


@pytest.mark.network
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_no_script_runs_in_a_browser(made: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("tornado")
    (tmp_path / "bad.html").write_text(f"<title>{NAMES[2]}</title>", encoding="utf-8")  # what an unescaped name does

    async def look() -> dict[str, Any]:
        found = {}
        async with tab(tmp_path / "profile") as shown:
            for kind, page in {**made, "bad": tmp_path / "bad.html"}.items():
                await shown.open(page.as_uri())
                found[kind] = await shown.evaluate(
                    "[window.owned === 1, document.querySelectorAll('script, img, iframe, [onload], [onerror], [onmouseover]').length]"
                )
        return found

    told = asyncio.run(look())
    assert told.pop("bad") == [True, 1]
    assert told == {kind: [False, 0] for kind in made}


def test_figures_are_written_by_a_serialiser_that_keeps_drawings_alone() -> None:
    for name in NAMES:
        made = figure(
            name, lambda axis, name=name: (axis.plot([1, 2], label=name), axis.set_title(name), axis.legend())
        )
        assert isinstance(made, InlineFigure)
        Tags(made)
        assert not any(colour in made for colour in _VARIABLES)
        assert "var(--font)" in made
    head = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    for inner in ("<script>1</script>", '<image href="x"/>', '<g onload="1"/>', '<use xlink:href="http://x"/>'):
        with pytest.raises(ConfigError, match="a figure with"):
            _inline(f"{head}{inner}</svg>", "x")


def test_templates_escape_everything_and_a_page_in_markdown_has_no_tags() -> None:
    folder = Path(atoll.__file__).parent / "report" / "templates"
    for template in folder.glob("*.j2"):
        text = template.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", text), template.name
        assert not re.search(r"=\{\{|='\{\{", text), f"{template.name}: an attribute without double quotes"
    claims = [Claim(name, None, name, "holds", name) for name in NAMES]
    text = write_block({"name": "x", "claims": [vars(claim) for claim in claims]})
    assert not re.search(r"<[A-Za-z/!?]", text)
