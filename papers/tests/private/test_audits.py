"""Every mechanism that is broken on purpose is caught, and every honest one is not; small, and of real runs."""

from __future__ import annotations

import pytest

from atoll import mechanisms as private
from atoll.reproduce import find_entry
from atoll_papers.privacy_audit import audits

CASES = audits()


@pytest.mark.parametrize("case", [case for case in CASES if case.broken], ids=lambda case: case.name)
def test_what_is_broken_on_purpose_is_caught(case):
    found = case.run(1000 if "halved" in case.name else 500)
    assert found.refuted, found.verdict


@pytest.mark.quick("CentralDP, users", "DPFTRL, bands", "ExampleDP*", "LaplaceLDP*", "GaussianLDP*")
@pytest.mark.parametrize("case", [case for case in CASES if not case.broken], ids=lambda case: case.name)
def test_what_holds_is_not_refuted(case):
    found = case.run(
        120, confidence=0.9999
    )  # the bound of Laplace replies is nearly tight: 95 % would fail in 5 % of the runs
    assert not found.refuted, found.verdict


def test_the_entry_judges_all_of_them():
    assert len({case.name.partition(",")[0] for case in CASES if case.broken}) == 5
    audited = {word.strip(",") for case in CASES for word in case.name.split()}
    assert {"AdaptiveClip", "Attendance", "Guarantee", "LocalDP", "Mechanism"} == set(private.__all__) - audited
    assert find_entry("privacy-audit").data == ()
