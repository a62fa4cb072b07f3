"""One value is written one way: at every site, by every reader and job, labels and features alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.errors import DataError
from atoll.data import Dataset, Islands, from_dataframes, from_pandas
from atoll.data.codings import name_lone_values, require_one_coding
from atoll.fitting import GLM, Fit, Ridge
from atoll.runtime.worker.cards import card_of, union_of_labels
from atoll.statistics import Statistics
from atoll.trees import Trees

Frames = dict[str, pd.DataFrame]
ROWS = 24


def frames(north: list[Any], south: list[Any], *, label: bool = False) -> Frames:
    """Two sites with a number, and a column ``sex`` that each writes in its own way; or a label so written."""
    made = {}
    for k, (name, words) in enumerate({"north": north, "south": south}.items()):
        draw = np.random.default_rng(k)
        own, other = np.resize(np.array(words), ROWS), draw.integers(0, 2, ROWS)
        made[name] = pd.DataFrame({"age": draw.normal(60, 9, ROWS), "sex": "f" if label else own, "y": own if label else other})  # fmt: skip
    return made


def through_fit(tables: Frames, **more: Any) -> Any:
    return atoll.simulate(Fit(model=GLM(alpha=1.0), label="y", **more), tables, engine="inline", progress=False)


def through_frames(tables: Frames, **more: Any) -> Any:
    rows = from_dataframes(tables, target="y", task="classification", **more)
    return atoll.simulate(Trees(rounds=1, max_depth=1), rows, engine="inline", progress=False)


def through_datasets(tables: Frames, **more: Any) -> Any:
    parts = {name: from_pandas(one, target="y", task="classification", **more) for name, one in tables.items()}
    return atoll.simulate(Trees(rounds=1, max_depth=1), Islands.from_datasets(parts), engine="inline", progress=False)


READERS = {"fit": through_fit, "frames": through_frames, "data sets": through_datasets}
OTHERS = {
    "words": (["m", "f"], ["Male", "Female"], "has «f», «m» at .* and «Female», «Male» at"),
    "case": (["yes", "no"], ["Yes", "no"], "«yes» at .*«Yes» at .*differ only in how they are written"),
    "accents": (["Köln", "no"], ["Ko\u0308ln", "no"], "differ only in how they are written"),
    "blanks": (["not known", "no"], ["not  known", "no"], "differ only in how they are written"),
    "one site": (["yes", "no", "Yes"], ["yes", "no"], "«Yes».* and «yes».*differ only in how they are written"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("label", [False, True], ids=["feature", "label"])
@pytest.mark.parametrize("case", OTHERS)
def test_values_written_in_two_ways_are_no_further_categories(case: str, label: bool, reader: str) -> None:
    north, south, said = OTHERS[case]
    tables, name = frames(north, south, label=label), "y" if label else "sex"
    for one in (tables, dict(reversed(tables.items()))):
        with pytest.raises(DataError, match=f"'{name}' has «.*({'differ only' if case != 'words' else ' and «'})"):
            READERS[reader](one)
    # The remedy works where the reader is: all values are listed, and so they are different ones.
    listed = {name: sorted({*north, *south})}
    assert READERS[reader](tables, categories=listed).outcome is not None
    if list(tables) == ["north", "south"]:
        with pytest.raises(DataError, match=said):
            READERS[reader](tables)


LABELS = {"0 and 1, 1 and 2": ([0, 1], [1, 2]), "0 and 1, true and false": ([0, 1], ["True", "False"])}


@pytest.mark.parametrize("reader", ["fit", "frames", "data sets"])
@pytest.mark.parametrize("case", LABELS)
def test_two_classes_have_one_coding(case: str, reader: str) -> None:
    north, south = LABELS[case]
    with pytest.raises(DataError, match=r"'?y'? .*(«0», «1»|text, such as .*, and numbers)"):
        READERS[reader](frames(north, south, label=True))
    if case.endswith("2"):
        listed = {"y": ["0", "1", "2"]}
        assert READERS[reader](frames(north, south, label=True), categories=listed).outcome is not None


def test_sites_of_a_network_agree_on_classes() -> None:
    """Sites tell the names of their classes, and the server compares them as it compares files."""

    def card(names: list[str]) -> Any:
        rows = {"x": np.zeros((2, 1)), "y": [0, 1]}
        return card_of(Dataset(rows, task="classification", labels=names))

    for names, said in ((["0", "1"], ["1", "2"]), (["no", "yes"], ["No", "Yes"]), (["no", "yes"], ["nei", "ja"])):
        with pytest.raises(DataError, match=r"the label 'target' has .* site 'b'"):
            union_of_labels({"a": card(names), "b": card(said)})
    assert union_of_labels({"a": card(["ill", "well"]), "b": card(["dead", "ill"])}) == ("dead", "ill", "well")


def test_what_may_be_right_is_said_and_not_refused() -> None:
    some = through_fit(frames(["m", "f", "x"], ["m", "f"])).outcome.told  # a further value, less than half of its own
    assert not any("coded" in note for note in some.get("notes", ()))
    moved = frames(["heart", "eye", "skin"], ["Herz", "eye", "skin"])  # one value in place of another's
    said = "column 'sex' has 'heart' at {0} 'north' alone, and 'Herz' at {0} 'south' alone: is it coded differently?"
    assert said.format("party") in through_fit(moved).outcome.told["notes"]
    assert said.format("client") in through_frames(moved).notices
    wards = {"a": ["heart", "eye", "skin"], "b": ["Herz", "eye", "skin"], "c": ["heart", "eye", "skin", "ear"]}
    assert name_lone_values(wards, "ward") == ["column 'ward': site 'b' alone has 'Herz', and the others have 'ear', 'heart': is it coded differently?"]  # fmt: skip
    alone = frames(["m", "f"], ["Male"])
    said = "column 'sex' has 'f', 'm' at {0} 'north' alone, and 'Male' at {0} 'south' alone: is it coded differently?"
    assert said.format("party") in through_fit(alone).outcome.told["notes"]
    for reader in (through_frames, through_datasets):
        assert said.format("client") in reader(alone).notices
    shown = atoll.simulate(Statistics(), alone, engine="inline", progress=False)
    assert said.format("site") in shown.notices
    spelt = atoll.simulate(Statistics(), frames(["m", "f"], ["M", "f"]), engine="inline", progress=False)
    assert any("«m» at site 'north' and «M» at site 'south'" in line for line in spelt.notices)
    third = name_lone_values({"a": ["m", "f"], "b": ["Male", "f"], "c": ["f", "m"]}, "sex")
    assert third == ["column 'sex': site 'b' alone has 'Male', and the others have 'm': is it coded differently?"]
    # Names of one's own are no coding: every row has another.
    towns = [[f"{site} {k}" for k in range(ROWS)] for site in ("a", "b")]
    require_one_coding({"a": towns[0], "b": towns[1]}, "town", "here")
    require_one_coding({"a": ["Rome", "Lima"], "b": ["Oslo", "Bonn"]}, "town", "here", rows={"a": 2, "b": 2})


def test_test_rows_with_values_of_their_own_are_named() -> None:
    tables = frames(["m", "f"], ["f", "m"])
    test = frames(["m", "x"], ["f"])["north"]
    rows = from_dataframes(tables, target="y", task="classification", test=test)
    told = atoll.simulate(Trees(rounds=1, max_depth=1), rows, engine="inline", progress=False).notices
    assert "column 'sex': the test rows have 'x', which no client has" in told
    with pytest.raises(DataError, match="«Female», «Male» at site 'test'"):
        from_dataframes(tables, target="y", test=test.assign(sex=np.resize(["Male", "Female"], ROWS)))


def test_numbers_that_are_codes_are_compared() -> None:
    tables = frames([0, 1], [1, 2])
    said = "column 'sex' has 0 and 1 at client 'north', and 1 and 2 at client 'south': is it coded differently?"
    runs: dict[str, Callable[[], Any]] = {
        "fit": lambda: atoll.simulate(Fit(model=Ridge(), label="age"), tables, engine="inline", progress=False),
        "statistics": lambda: atoll.simulate(Statistics(), tables, engine="inline", progress=False),
        "trees": lambda: through_frames(tables),
    }
    for run in runs.values():
        assert said in run().notices
    same = atoll.simulate(Statistics(), frames([0, 1], [1]), engine="inline", progress=False)
    assert not any("coded" in line for line in same.notices)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sets(st.sampled_from("pqrstuv"), min_size=1), min_size=2),
    st.randoms(use_true_random=False),
)
def test_neither_order_of_sites_nor_of_values_counts(sets: dict[str, set[str]], draw: Any) -> None:
    def judged(given: dict[str, list[str]]) -> tuple[bool, int]:
        try:
            require_one_coding(given, "c", "here")
        except DataError:
            return True, 0
        return False, len(name_lone_values(given, "c"))

    def turned() -> dict[str, list[str]]:
        sites = sorted(sets)
        draw.shuffle(sites)
        return {site: draw.sample(sorted(sets[site]), len(sets[site])) for site in sites}

    assert judged(turned()) == judged(turned())
    shared = {site: [*each, "everywhere"] for site, each in sets.items()}
    require_one_coding(shared, "c", "here")  # a common value: they differ, but are no two codings
