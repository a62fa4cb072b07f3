"""Settings whose annotation lists words: a word that is none of them is refused where the settings are made, whatever class they are of."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, ConfigError
from atoll.core.validation import Checked, listed_words
from atoll.secure.noise import LatticeNoise, SkellamNoise

SOURCE = Path(atoll.__file__).parent
Rule = Literal["mean", "median"]


@dataclass(frozen=True)
class Sketch(Checked):
    rule: Rule = "mean"
    bits: Literal[32, 16] = 32
    key: Annotated[Literal["text"] | None, "of a table"] = None
    place: Literal["first"] | float = "first"


@dataclass(frozen=True)
class Coded(Sketch):
    rule: Literal["median"] = "median"
    table: dict[str, str] = dataclasses.field(default_factory=lambda: {"first": "row"})

    def __post_init__(self) -> None:
        if int(self.bits) == 8:
            raise ConfigError("bits=8", remedy="a byte is not enough: use 16")
        if isinstance(self.place, str):
            self.table[self.place]


def test_a_word_that_is_not_listed_is_refused_with_the_nearest_one() -> None:
    assert listed_words(Sketch)["rule"] == (("mean", "median"), ())
    assert Sketch("median", 16, "text", 2).place == 2
    for setting, said in (
        ({"rule": "medain"}, "rule='medain' is not known. Did you mean 'median'"),
        ({"rule": None}, "rule=None is not known"),
        ({"rule": ["mean"]}, r"rule=\['mean'\] is not known"),
        ({"bits": 8}, "bits=8 is not known.*use 32 or 16"),
        ({"bits": True}, "bits=True is not known"),
        ({"key": "words"}, "key='words' is not known.*use text or None"),
        ({"place": "last"}, "place='last' is not known.*use first or a number"),
    ):
        with pytest.raises(ConfigError, match=said):
            Sketch(**setting)


def test_what_a_class_says_itself_comes_first_and_a_failed_lookup_is_explained() -> None:
    with pytest.raises(ConfigError, match="a byte is not enough"):
        Coded(bits=8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="place='last' is not known"):
        Coded(place="last")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"rule='mean' is not known.*in Coded.*use median"):
        Coded(rule="mean")  # type: ignore[arg-type]


@cache
def classes_with_words() -> list[Any]:
    """The classes of settings that have a field of listed words: found in the text of the source, so none is missed where an annotation cannot be read."""
    texts = {path: path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    names = {"Literal", *(name for text in texts.values() for name in re.findall(r"^(\w+)(?:: TypeAlias)? = \"?Literal\[", text, re.M))}  # fmt: skip
    lists = re.compile(rf"\b(?:{'|'.join(sorted(names))})\b")
    found: list[Any] = []
    for path, text in texts.items():
        if not any(lists.search(line) for line in re.findall(r"^    \w+: (?!ClassVar)([^=\n]*)", text, re.M)):
            continue
        module = importlib.import_module(".".join(("atoll", *path.relative_to(SOURCE).with_suffix("").parts)))
        for one in vars(module).values():
            if isinstance(one, type) and one.__module__ == module.__name__ and issubclass(one, Checked) and dataclasses.is_dataclass(one):  # fmt: skip
                own = inspect.get_annotations(one)
                texts_of = [str(own.get(field.name, "")) for field in dataclasses.fields(one) if field.init]
                named = {word for said in texts_of for word in lists.findall(said)}
                if any(word == "Literal" or get_origin(vars(module).get(word, Rule)) is Literal for word in named):
                    found.append(one)
    return found


def required(kind: Any) -> dict[str, Any]:
    """What a class needs beside its defaults."""
    import torch

    import atoll.models
    from atoll.mechanisms import LaplaceLDP

    clipped = {"clip": 1.0, "noise": 1.0}
    needed: dict[str, dict[str, Any]] = {
        "Recorded": {"crashed": np.zeros((1, 1), bool), "point": np.zeros((1, 1))},
        "FedBoost": {"members": [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]},
        "Training": {"model": atoll.models.linear(2, 2)},
        "Mechanism": {"noise": 1.0}, "LocalDP": {"epsilon": 1.0, "delta": 1e-5}, "CentralDP": clipped, "DistributedDP": {**clipped, "least": 2}, "ExampleDP": clipped, "DPFTRL": clipped,
        "NbAFL": clipped, "ShuffledDP": {"local": LaplaceLDP(epsilon=1.0, clip=1.0), "shuffler": "reducer", "epsilon": 1.0, "delta": 1e-5}, "Budget": {"epsilon": 1.0},
        "CountNoise": {"multiplier": 1.0}, "LatticeNoise": {"multiplier": 1.0, "clip": 1.0, "step": 0.1}, "BloomEncoding": {"columns": ("name",)},
        "Linkage": {"columns": ("name",)}, "AlignmentPlan": {"columns": ("id",), "roles": ("a", "b")}, "DataSummary": {"size": 2, "epsilon": 1.0},
        "PrADA": {"groups": [[0]]}, "Search": {"retrain": 1},
    }  # fmt: skip
    return needed.get(kind.__name__, {})


def test_every_class_refuses_a_word_that_it_does_not_know() -> None:
    found = classes_with_words()
    assert len(found) > 60
    for kind in found:
        words = listed_words(kind)
        assert words, f"nobody reads the words of {kind.__name__}"
        try:
            whole = (SkellamNoise if kind is LatticeNoise else kind)(**required(kind))
        except AtollError as error:
            pytest.fail(f"give required() what {kind.__name__} needs beside its defaults: {error}")
        for name in words:
            with pytest.raises(AtollError, match=f"(?s){name}.*no such word") as said:
                replace(whole, **{name: "no such word"})
            assert said.value.where
            assert said.value.remedy
