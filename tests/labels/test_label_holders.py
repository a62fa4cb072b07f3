"""Whose labels a method learns from: without any, or with a class that nobody labels, it is refused before it trains."""

from __future__ import annotations

from typing import Any

import pytest

import atoll
from atoll import labels as L
from atoll.algorithms import FedProx
from atoll.core.errors import DataError
from atoll.core.facets import facet
from atoll.data import Islands, iid, unlabel
from atoll.learn import Training
from atoll.learn.algorithm import Labelled
from tests.support.label_toys import CLASSES, images, net

WHOLE = iid(images(60, share=2.0), parties=3, seed=0)
SERVER, NOBODY = unlabel(WHOLE, keep=12, at="server"), unlabel(WHOLE, at="none")


def prepared(algorithm: Any, islands: Islands) -> Any:
    return Training(model=net, algorithm=algorithm, rounds=1).prepare(islands)


@pytest.mark.parametrize(
    ("algorithm", "holders"),
    [
        (L.FixMatch(), ("clients",)),
        (L.FixMatch(base=FedProx(mu=0.1)), ("clients",)),
        (L.SemiFL(), ("labels",)),
        (L.SemiFL(labels_at="clients"), ("clients",)),
        (L.FedMatch(labels_at="server"), ("labels",)),
        (L.DualAdapt(), ("labels",)),
        (L.FADA(), ("clients",)),
        (L.FRuDA(), ()),
        (L.Guard(base=L.SemiFL()), ("labels",)),
        (L.Relabel(), ("clients",)),
        (L.FedSimCLR(), ()),
        (L.FedX(base=L.FedSimCLR()), ()),
        (atoll.FedAvg(), ("clients",)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, atoll.Algorithm) else "",
)
def test_a_method_says_whose_labels_it_learns_from(algorithm: Any, holders: tuple[str, ...]) -> None:
    assert facet(algorithm, Labelled).label_holders == holders


@pytest.mark.parametrize(
    ("algorithm", "islands", "said"),
    [
        (L.FixMatch(), NOBODY, "FixMatch needs labels, and no party has any: client-0, client-1, client-2.*methods"),
        (L.Supervised(), NOBODY, "Supervised needs labels"),
        (L.Guard(), NOBODY, "needs labels"),
        (L.FixMatch(), SERVER, "FixMatch learns from labels at clients, which have none: labels are at labels"),
        (L.SemiFL(labels_at="clients"), SERVER, "SemiFL learns from labels at clients, which have none"),
        (L.RSCFed(), unlabel(WHOLE, keep=2, seed=0), r"RSCFed cannot learn classes without a label: .*labels are at client-"),
        (L.SemiFL(), unlabel(WHOLE, keep=3, at="server"), r"SemiFL cannot learn a class without a label: .*labels are at labels"),
    ],
)  # fmt: skip
def test_without_labels_where_it_learns_a_method_is_refused(algorithm: Any, islands: Islands, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        prepared(algorithm, islands)
    assert caught.value.where
    assert caught.value.remedy


def test_what_can_be_learned_is_not_refused() -> None:
    """Enough labels; labels of some classes at each client; a class that only unlabelled rows have, for FedPU; no label, for methods that need none."""
    prepared(L.FixMatch(), unlabel(WHOLE, keep=12))
    prepared(L.SemiFL(), SERVER)
    prepared(L.FedPU(), unlabel(WHOLE, keep=1, at="classes"))
    prepared(L.FedPU(), unlabel(WHOLE, keep=3, seed=0))
    Training(model=lambda: L.Siamese(net(), CLASSES), algorithm=L.FedSimCLR(), rounds=1).prepare(NOBODY)


def test_a_helper_that_is_not_about_labels_gets_a_remedy_of_its_own() -> None:
    with pytest.raises(atoll.AtollError, match="asks the party 'target'") as caught:
        prepared(L.FADA(), WHOLE)
    assert "unlabel" not in caught.value.remedy
