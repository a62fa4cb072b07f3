"""What a kind of job shows in its report: tables and pictures from plain data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.report import write_report
from atoll.report.page import draw_sections
from atoll.statistics import Statistics


def rows(seed: int, size: int = 60) -> dict[str, object]:
    draw = np.random.default_rng(seed)
    return {"age": draw.normal(50 + seed, 9, size), "ward": draw.choice(["surgery", "<b>internal</b>"], size)}


def test_a_page_of_statistics_has_tables_and_a_picture_of_each_drift(tmp_path: Path) -> None:
    job = Statistics(bins=5, quantiles=[0.5], drift=True, correlations=True, by=["ward"], min_count=5)
    sites = {"north": rows(0), "south": rows(9)}
    result = atoll.simulate(job, sites, engine="inline", folder=tmp_path / "run", progress=False)
    page = write_report(tmp_path / "run").read_text()
    assert page.count("<svg role") >= 4  # age, its drift at two sites, its mean by ward, the correlations
    for words in ("All sites", "Each site", "Drift", "By ward", "Correlations", "age at south", "Kolmogorov-Smirnov"):
        assert words in page
    assert "<b>internal</b>" not in page
    assert "Federated statistics" in result.report(tmp_path / "page.html").read_text()
    kept = json.loads((tmp_path / "run" / "sections.json").read_text())
    assert [section["title"] for section in kept][:3] == ["All sites", "Each site", "Drift"]


def test_every_kind_of_picture_is_drawn_and_an_unknown_one_is_not() -> None:
    series = [{"name": "a", "values": [1, 2]}, {"name": "b", "values": [2, 0]}]
    figures = [
        {"name": "one", "kind": "histogram", "edges": [0, 1, 3], "series": series[:1]},
        {
            "name": "two",
            "kind": "bars",
            "labels": ["a very long label of a category", "another long label of one"],
            "series": series,
        },
        {"name": "three", "kind": "points", "labels": ["x", "y"], "series": series},
        {"name": "four", "kind": "matrix", "labels": ["x", "y"], "values": [[1.0, None], [None, -0.5]]},
        {"name": "five", "kind": "intervals", "labels": ["x"], "values": [1.0], "low": [0.5], "high": [2.0]},
        {"name": "six", "kind": "bars", "flat": True, "labels": ["x", "y"], "series": series[:1]},
        {
            "name": "seven",
            "kind": "lines",
            "steps": True,
            "diagonal": True,
            "bottom": 0.0,
            "x": "time",
            "series": [{"name": "a", "x": [0, 1], "values": [1, 0.5], "low": [1, 0.2], "high": [1, 0.8]}],
        },
    ]
    (section,) = draw_sections([{"title": "t", "figures": figures, "tables": []}])
    assert [
        name in picture
        for name, picture in zip(
            ("one", "two", "three", "four", "five", "six", "seven"), section["pictures"], strict=True
        )
    ] == [True] * 7
    with pytest.raises(KeyError, match="pie"):
        draw_sections([{"title": "t", "figures": [{"name": "p", "kind": "pie"}]}])
