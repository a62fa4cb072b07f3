"""The list of the papers' properties: complete, and every test that it names is there."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.support.sources import ROOT

TEXT = (ROOT / "tests" / "PROPERTIES.md").read_text(encoding="utf-8")
SECTIONS = {
    title: (int(count), re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", body, re.M))
    for title, count, body in re.findall(r"^## ([^\n]+) \((\d+)\)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
}


@functools.cache
def _tests(path: str) -> frozenset[str]:
    file = ROOT / path if path.startswith("papers/") else ROOT / "tests" / path
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_all_papers_are_there():
    assert {title: count for title, (count, _) in SECTIONS.items()} == {
        "FedAQ": 12,
        "Survey: architectures and base models": 9,
        "Survey: L-FedADMM": 5,
        "Survey: multi-task learning": 3,
        "Survey: matrix factorisation": 4,
        "Survey: acceleration frameworks": 7,
        "Survey: compression": 6,
        "Survey: second order": 3,
        "Survey: ADMM": 6,
        "Survey: synchronous and asynchronous": 3,
        "Survey: privacy and security": 12,
        "Accountants of differential privacy": 6,
        "Noise under secure sums and across rounds": 11,
        "Audits of differential privacy": 6,
        "Privacy ledgers": 8,
        "Survey: reference numbers": 9,
        "Upcycled-FL": 16,
        "SAFA and participation": 23,
        "HybridFL": 10,
        "FedProf": 9,
        "Federated runtime": 12,
        "Secure compression": 11,
        "Federated learning without full labels": 11,
        "Federated learning without full labels: beyond the papers": 12,
        "NVIDIA FLARE: capabilities": 40,
        "FedTruthFinder": 13,
        "Federated ensemble learning": 11,
    }


@pytest.mark.every(4)
@pytest.mark.parametrize("title", SECTIONS)
def test_every_property_has_tests_or_a_reason(title: str):
    count, rows = SECTIONS[title]
    assert [int(number) for number, _, _ in rows] == list(range(1, count + 1))
    for number, _, held in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", held)
        assert named or held.startswith("not a test: "), f"{title} {number} names no test and no reason"
        missing = [f"{path}::{name}" for path, name in named if name not in _tests(path)]
        assert not missing, f"{title} {number}"
        left = re.sub(r"`[\w/]+\.py::\w+`(, )?", "", held)
        assert held.startswith("not a test: ") or not left.strip(), f"{title} {number} says {left!r}"
