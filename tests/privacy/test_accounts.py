"""What a ledger says that parties have spent: composition over jobs and parties, whatever is repeated, resumed or written at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.event import Gaussian, Laplace, Ledger, NonPrivate
from atoll.privacy import (
    LedgerAccount,
    epsilon_of,
    exact_epsilon,
    group_privacy,
    joint,
    parallel,
    renyi_curve,
    renyi_epsilon,
    statement,
)

PARTIES, JOBS = ("a", "b", "c"), ("", "first", "second")
events = st.one_of(
    st.builds(Gaussian, noise_multiplier=st.floats(1.0, 8.0), count=st.integers(1, 3)),
    st.builds(Laplace, epsilon=st.floats(0.05, 1.0)),
)
lines = st.lists(
    st.tuples(
        events,
        st.lists(st.sampled_from(PARTIES), min_size=1, max_size=3, unique=True),
        st.sampled_from(JOBS),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=6,
)


def booked(rows, ledger=None):
    ledger = Ledger() if ledger is None else ledger
    for event, parties, job, request in rows:
        ledger.append(event, parties, f"main/t/{request}#0", job=job)
    return ledger


def distinct(rows):
    """What was released: a request of a job releases the same event of a party once."""
    return {(event, party, job, request) for event, parties, job, request in rows for party in parties}


def spent(ledger, **how):
    return {row.party: row for row in statement(LedgerAccount(ledger), **how) if "server" in row.adversaries}


@settings(max_examples=20)
@given(lines)
@pytest.mark.slow
def test_jobs_compose_jointly_per_party(rows):
    """RDP of a party is the sum over everything that it is in; the largest party is the joint composition."""
    found = spent(booked(rows))
    steps = [(event.count * renyi_curve(replace_count(event)), [party]) for event, party, _, _ in distinct(rows)]
    for party, row in found.items():
        mine = [curve for curve, units in steps if units == [party]]
        pure = sum(e.epsilon if isinstance(e, Laplace) else math.inf for e, p, _, _ in distinct(rows) if p == party)
        assert row.spent.rdp == pytest.approx(min(pure, renyi_epsilon(joint([(c, [party]) for c in mine]), 1e-5)))
    assert max(row.spent.rdp for row in found.values()) <= renyi_epsilon(joint(steps), 1e-5) * (1 + 1e-9)


def replace_count(event):
    """One release of several."""
    return Gaussian(noise_multiplier=event.noise_multiplier) if isinstance(event, Gaussian) else event


@given(st.lists(st.floats(1.0, 8.0), min_size=2, max_size=3))
def test_disjoint_parties_compose_in_parallel(multipliers):
    """Each party releases of its own people only: together they cost the largest, order by order."""
    ledger = Ledger()
    for party, multiplier in zip(PARTIES, multipliers, strict=False):
        ledger.append(Gaussian(noise_multiplier=multiplier), party, "main/t/0#0")
    curves = [
        (renyi_curve(Gaussian(noise_multiplier=m)), [p]) for p, m in zip(PARTIES, multipliers, strict=False)
    ]  # fmt: skip
    largest = max(row.spent.rdp for row in spent(ledger).values())
    assert largest == pytest.approx(renyi_epsilon(parallel(curves), 1e-5))
    assert largest < renyi_epsilon(np.sum([curve for curve, _ in curves], axis=0), 1e-5)


@given(st.floats(2.0, 20.0), st.integers(1, 4), st.integers(2, 5))
def test_records_of_one_person_are_a_group(multiplier, releases, size):
    """A party's rows that belong to one person are protected as a group: exactly for Gaussian noise, and never worse than the general bound."""
    ledger = Ledger()
    for number in range(releases):
        ledger.append(Gaussian(noise_multiplier=multiplier, unit="example"), "a", f"main/t/{number}#0")
    one = spent(ledger, unit="example")["a"].spent.pld
    group = spent(ledger, unit="example", records=size)["a"].spent.pld
    assert group == pytest.approx(exact_epsilon(releases * (size / multiplier) ** 2, 1e-5))
    _, delta = group_privacy(one, 1e-5, size)  # what the general bound says of the same group at its own delta
    if delta < 0.5:
        assert epsilon_of(((Gaussian(noise_multiplier=multiplier / size), releases),), delta) <= size * one * (1 + 1e-9)


@settings(max_examples=15)
@given(lines, st.permutations(range(6)), st.data())
def test_repeats_resumes_and_other_writers_change_nothing(tmp_path_factory, rows, order, data):
    """Whatever is written again, by whichever process and however often the file is opened, the account is that of the releases."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    writers = [Ledger(path), Ledger(path)]
    for turn in [*range(len(rows)), *(i for i in order if i < len(rows))]:
        which = data.draw(st.integers(0, 2))
        if which == 2:
            writers[0] = Ledger(path)  # a resume
        booked([rows[turn]], writers[which % 2])
    plain, found = spent(booked(rows)), spent(Ledger(path))
    assert found.keys() == plain.keys()
    for party, row in found.items():
        assert row.spent.pld == pytest.approx(plain[party].spent.pld)
        assert row.releases == plain[party].releases


def test_smaller_units_do_not_protect_larger_ones():
    ledger = Ledger()
    ledger.append(Gaussian(noise_multiplier=4.0), "a", "r#0")
    ledger.append(Gaussian(noise_multiplier=4.0, unit="example"), "a", "r#1")
    found = {row.unit: row for row in statement(LedgerAccount(ledger))}
    assert found["example"].spent.pld == pytest.approx(
        exact_epsilon(2 / 16, 1e-5)
    )  # a user's noise protects its examples
    assert found["user"].spent.pld == math.inf
    assert found["user"].unprotected == ("protects smaller units only",)


def test_what_only_the_server_sees_costs_nothing_against_the_others():
    ledger = Ledger()
    ledger.append(Gaussian(noise_multiplier=2.0), "a", "r#0")
    ledger.append(NonPrivate(what="replies", seen_by="server"), "a", "r#1")
    found = {row.adversaries: row.spent.pld for row in statement(LedgerAccount(ledger))}
    assert found[("server",)] == math.inf
    assert found["clients", "model"] == pytest.approx(exact_epsilon(1 / 4, 1e-5))
