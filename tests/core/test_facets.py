"""Facets: who answers for what, on a contract made up here."""

from __future__ import annotations

import warnings
from abc import ABCMeta
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from atoll.core.facets import Facet, Wrapper, changes, default_of, facet, keep_old_form


class Coloured(Facet):
    """A concern with a constant, a property and a function; the function reads the part."""

    bright: ClassVar[bool] = False

    @property
    def colour(self) -> str:
        return "grey"

    def paint(self, coats: int = 1) -> str:
        return f"{type(self).__name__} {self.colour} x{coats}"


class Part:
    def work(self) -> str:
        return "plain"


class Red(Part, Coloured):
    bright: ClassVar[bool] = True

    @property
    def colour(self) -> str:
        return "red"


@dataclass
class Around(Wrapper, Part):
    base: Any

    def work(self) -> str:
        return f"around {self.base.work()}"


@dataclass
class Darker(Around, Coloured):
    @property
    def colour(self) -> str:
        return "dark " + str(super().colour)


@dataclass
class Plain(Around, Coloured):
    paint = default_of(Coloured, "paint")


def test_a_part_that_carries_a_facet_answers_itself() -> None:
    red = Red()
    assert facet(red, Coloured) is red
    assert (facet(red, Coloured).bright, facet(red, Coloured).colour, facet(red, Coloured).paint(2)) == (
        True,
        "red",
        "Red red x2",
    )


def test_the_defaults_answer_for_a_part_that_carries_none_and_know_the_part() -> None:
    said = facet(Part(), Coloured)
    assert (said.bright, said.colour) == (False, "grey")
    with pytest.raises(AttributeError, match="'Part' object has no attribute 'colour'"):
        said.paint()  # the body runs on the part itself, which has no colour of its own


def test_every_wrapper_passes_on_what_it_does_not_say() -> None:
    for wrapped in (Around(Red()), Around(Around(Red())), Darker(Red()), Around(Darker(Red()))):
        assert facet(wrapped, Coloured).bright is True
        assert facet(wrapped, Coloured).paint(3) == "Red red x3"


def test_a_wrapper_says_what_it_overrides_and_super_asks_the_base() -> None:
    assert facet(Around(Darker(Darker(Red()))), Coloured).colour == "dark dark red"
    assert Darker.bright is False  # of the class, without an object inside


def test_a_wrapper_can_go_back_to_a_default() -> None:
    assert facet(Plain(Red()), Coloured).paint() == "Plain red x1"
    assert changes(Plain, Around, "paint")
    assert not changes(Plain, Part, "paint")


def test_changes_sees_bodies_of_contracts_and_facets_alike() -> None:
    assert changes(Red, Part, "colour", "paint")
    assert not changes(Red, Part, "paint")
    assert not changes(Red, Part, "work")
    assert changes(Darker, Around, "colour")
    assert not changes(Darker, Around, "bright", "paint", "work")
    assert changes(Around, Part, "work")


def _contract() -> tuple[type, type[Facet]]:
    """A contract that had a facet's names itself, and the facet."""

    class Weighed(Facet):
        heavy: ClassVar[bool] = False

        def weight(self) -> int:
            return 1

        def price(self) -> int:
            return 2

    class Contract(metaclass=ABCMeta):  # noqa: B024 - only its metaclass matters
        pass

    keep_old_form(Contract, Weighed)
    return Contract, Weighed


def test_a_class_of_the_old_form_works_and_says_the_new_form_once() -> None:
    contract, weighed = _contract()
    with pytest.warns(
        DeprecationWarning, match=r"overrides `weight`, of the facet Weighed: write class Old\(Contract, Weighed\)"
    ) as told:

        class Old(contract):  # type: ignore[misc, valid-type]
            def weight(self) -> int:
                return 10 * super().weight()

    assert len(told) == 1
    assert told[0].filename == __file__
    said: Any = facet(Old(), weighed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (said.weight(), said.price(), said.heavy, Old.heavy) == (10, 2, False, False)

        class New(contract, weighed):  # type: ignore[misc, valid-type]
            def weight(self) -> int:
                return 7

        class Newer(Old):
            def price(self) -> int:
                return 3

    assert facet(New(), weighed).weight() == 7
    assert facet(Newer(), weighed).price() == 3


def test_a_body_that_comes_from_a_class_beside_is_of_the_old_form_too() -> None:
    contract, weighed = _contract()

    class Beside:
        def weight(self) -> int:
            return 5

    with pytest.warns(DeprecationWarning, match="overrides `weight`"):

        class Mixed(Beside, contract):  # type: ignore[misc, valid-type]
            pass

    assert facet(Mixed(), weighed).weight() == 5  # type: ignore[attr-defined]


def test_reading_a_name_in_the_old_form_works_and_says_the_new_form_once() -> None:
    contract, weighed = _contract()

    @dataclass
    class Outer(Wrapper, contract):  # type: ignore[misc, valid-type]
        base: Any

    class Inner(contract, weighed):  # type: ignore[misc, valid-type]
        def weight(self) -> int:
            return 4

    with pytest.warns(DeprecationWarning, match=r"`weight` is read by facet\(part, Weighed\)"):
        assert Outer(Inner()).weight() == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Outer(Inner()).weight() == 4
        assert Inner().price() == 2


def test_what_an_object_sets_on_itself_in_the_old_form_is_asked_for_through_wrappers() -> None:
    contract, weighed = _contract()

    class Heavy(contract):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self.heavy = True

    with pytest.warns(
        DeprecationWarning, match="Heavy sets `heavy`, of the facet Weighed: let its class inherit Weighed"
    ):
        made = Heavy()
    assert facet(made, weighed).heavy is True  # type: ignore[attr-defined]
    assert facet(made, weighed).price() == 2  # type: ignore[attr-defined]
