"""Every wrapper of an algorithm passes on every facet, also one that it has never heard of."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

from atoll.algorithms import FedAvg, Scaffold, Upcycled
from atoll.core.facets import Facet, Wrapper, changes, facet, names_of
from atoll.learn import algorithm as contract
from atoll.learn.algorithm import Algorithm
from atoll.learn.wrapped import Wrapped

FACETS = [kind for kind in vars(contract).values() if isinstance(kind, type) and Facet in kind.__bases__]
PARTLY = ("contacts", "passes", "needs", "offers")
"""What all wrappers compute from what the base says; tested with the contract."""


class Ripe(Facet):
    """A facet that only this file knows."""

    sweet = 0

    def eat(self, bites: int) -> str:
        return f"{bites} of nothing"

    @property
    def seeds(self) -> int:
        return 0


class Pear(FedAvg, Ripe):
    sweet = 7

    def eat(self, bites: int) -> str:
        return f"{bites} of a pear"

    @property
    def seeds(self) -> int:
        return 5


def below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from below(one)


def wrappers() -> list[type[Wrapped]]:
    """All wrappers of the package, those that a training installs among them."""
    for room in ("learn", "labels", "models", "torch"):
        package = importlib.import_module(f"atoll.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ModuleNotFoundError):  # of an extra that is not installed
                importlib.import_module(found.name)
    return [one for one in dict.fromkeys(below(Wrapped)) if one.__module__.startswith("atoll.")]


def around(kind: type[Wrapped], base: Algorithm) -> Any:
    """A wrapper with its base and nothing else: passing on needs no setting."""
    made = object.__new__(kind)
    object.__setattr__(made, "base", base)
    return made


def saying(kind: type[Facet], name: str, mark: object) -> Algorithm:
    """An algorithm that says ``mark`` under one name of a facet."""
    said = inspect.getattr_static(kind, name)
    body: Any = mark
    if isinstance(said, property):
        body = property(lambda self: mark)
    elif callable(said):
        body = lambda self, *given: mark  # noqa: E731 - one expression
    return type("Saying", (FedAvg, *(() if issubclass(FedAvg, kind) else (kind,))), {name: body})()


def test_every_wrapper_passes_every_facet_on() -> None:
    pytest.importorskip("torch")
    found, asked = wrappers(), 0
    assert len(found) > 40
    assert len(FACETS) == 9
    for wrapper in found:
        for kind in FACETS:
            for name in names_of(kind):
                if name in PARTLY or changes(wrapper, Wrapped, name):
                    continue  # it has a body of its own
                mark = object()
                answer = getattr(facet(around(wrapper, saying(kind, name, mark)), kind), name)
                said = inspect.getattr_static(kind, name)
                if callable(said) and not isinstance(said, property):
                    answer = answer(*[None for _ in list(inspect.signature(said).parameters)[1:]])
                assert answer is mark, f"{wrapper.__name__} does not pass on {kind.__name__}.{name}"
                asked += 1
    assert asked > 1000


def test_a_facet_of_tomorrow_reaches_through_every_wrapper() -> None:
    pytest.importorskip("torch")
    for wrapper in wrappers():
        for base in (Pear(), around(Upcycled, Pear())):
            said = facet(around(wrapper, base), Ripe)
            assert (said.sweet, said.eat(2), said.seeds) == (7, "2 of a pear", 5), wrapper.__name__
        assert facet(around(wrapper, FedAvg()), Ripe).eat(3) == "3 of nothing"


def test_wrappers_of_two_kinds_around_each_other_pass_on_what_is_inside() -> None:
    made = Upcycled(base=Scaffold())
    assert facet(made, contract.Movable).extrapolates == ("params", "control")
    assert facet(made, contract.Stateful) is made.base
    assert isinstance(made, Wrapper)


def test_an_algorithm_of_the_old_form_keeps_its_word_with_a_training() -> None:
    """A mechanism written before facets is still a mechanism: its events are found, and it guards as before."""
    from atoll.core.event import Gaussian
    from atoll.learn.local.reports import is_private

    with pytest.warns(
        DeprecationWarning, match=r"overrides `events`, of the facet Private: write class Mechanism\(FedAvg, Private\)"
    ):

        class Mechanism(FedAvg):
            def events(self, examples: int) -> tuple[Any, ...]:
                return (Gaussian(noise_multiplier=1.0), *super().events(examples))

    made = around(Upcycled, Mechanism())
    assert is_private(made)
    assert len(facet(made, contract.Private).events(3)) == 1
    assert "releases" in {need.capability.name for need in Mechanism().needs}
