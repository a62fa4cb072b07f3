"""Every example in a docstring gives what it says."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.support.sources import modules

NAMES = [module.name for module in modules() if ">>> " in module.text]


def test_there_are_examples() -> None:
    assert NAMES


@pytest.mark.parametrize("name", NAMES)
def test_docstring_examples(name: str) -> None:
    outcome = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert outcome.attempted > 0
    assert outcome.failed == 0
