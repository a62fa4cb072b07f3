"""Data cards: what is told of data, how sites agree, and that a learner built from a card is the simulator's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
import atoll.data
from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, DataError, MessageError, PolicyError
from atoll.data import Dataset, Islands
from atoll.data.model_columns import ModelColumns
from atoll.data.readers.table import from_table
from atoll.runtime.worker import DataCard, RemoteIslands, card_of, merge_cards
from atoll.runtime.worker.at_site import _in_agreed_codes
from atoll.runtime.worker.cards import Column, example_rows, lone_classes, recoded
from atoll.runtime.worker.sitedata import site_data

X, Y = Column("float32", (3,)), Column("int64")


def card(labels: Sequence[str] = (), classes: int | None = None, **more: Any) -> DataCard:
    count = len(labels) if classes is None else classes
    return DataCard("classification", {"x": X, "y": Y}, count, tuple(labels), **more)


def test_public_rows_at_the_server_follow_the_agreed_columns_and_stay_in_parts() -> None:
    """Columns are matched by name; rows of another width, and classes that nobody has, are refused."""
    iris = atoll.data.iris()
    remote = RemoteIslands(["a", "b"], [3, 4], card_of(iris))
    names = iris.about.features
    turned = Dataset({"x": np.asarray(iris.x)[:5, ::-1]}, features=names[::-1])
    made = remote.with_public(turned)
    assert np.array_equal(made.public.x, np.asarray(iris.x)[:5])
    assert np.array_equal(made.members(np.array([1])).public.x, made.public.x)
    assert remote.public is None
    with pytest.raises(DataError, match=r"a column x of shape \(2,\).*data\.public"):
        remote.with_public(Dataset({"x": np.zeros((3, 2))}))


def test_a_card_holds_no_value_and_travels() -> None:
    rows = Dataset({"x": np.full((5, 2), 41.5), "y": [0, 1, 1, 0, 2]}, features=("a", "b"), labels=("p", "q", "r"))
    made = card_of(rows)
    assert made == DataCard("classification", {"x": Column("float64", (2,)), "y": Y}, 3, ("p", "q", "r"), ("a", "b"))
    assert DataCard.unpack(M.decode(M.encode(made.packed())), "site 'a'") == made
    assert "41.5" not in str(made.packed())
    binary = Dataset({"x": np.ones((3, 1)), "y": [-1, 1, 1]})
    assert card_of(binary).negative == -1
    assert card_of(binary.take([1, 2])).negative is None


@pytest.mark.parametrize(
    "change",
    [
        {"task": "theft"}, {"classes": -1}, {"classes": "3"}, {"labels": ["a"]}, {"columns": {"z": ["int64", []]}},
        {"columns": {"x": ["object!", []]}}, {"columns": {"x": ["float32", [10**9, 10**9]]}}, {"negative": 7},
        {"features": "abc"}, {"categories": None},
    ],
)  # fmt: skip
def test_a_card_from_a_network_is_checked(change: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match=r"no data card.*\(in site 'a'\)"):
        DataCard.unpack({**card(("p", "q", "r")).packed(), **change}, "site 'a'")


@pytest.mark.parametrize(
    ("a", "b", "match"),
    [
        (card(("p",), features=("u", "v", "w")), card(("p",), features=("u", "v")),
         r"at site 'a' there is a column 'w', and at site 'b' there is none"),
        (card(("p",), features=("u", "v")), card(("p",), features=("u", "v", "id")),
         r"at site 'b' there is a column 'id', and at site 'a' there is none.*drop"),
        (card(("p",), features=("age [years]", "v")), card(("p",), features=("v", "age [months]")),
         r"column 'age \[months\]' is in another unit than column 'age \[years\]' of site 'a'"),
        (card(("p",), features=("u", "v", "w")), card(("p",)), r"the features have names, and at site 'b' they have none"),
        (card(("p",)), DataCard("classification", {"x": Column("float64", (3,)), "y": Y}, 1, ("p",)),
         r"column 'x' is float32 of shape \(3,\), and at site 'b' column 'x' is float64 of shape \(3,\)"),
        (card(("p",)), DataCard("classification", {"x": X}, 1, ("p",)), r"and at site 'b' column 'y' is missing"),
        (card(("p",)), DataCard("regression", {"x": X, "y": Y}), r"a classification task, and at site 'b' a regression task"),
        (card(("p", "q")), card(classes=2), r"the classes are p, q, and at site 'b' they are codes without names"),
        (card(("p",), categories={"sex": ("f", "m")}), card(("p",), categories={"sex": ("m", "f")}),
         r"column 'sex' has the values f, m, and at site 'b' the values m, f"),
        (DataCard("binary", {"x": X, "y": Y}, 2, negative=0), DataCard("binary", {"x": X, "y": Y}, 2, negative=-1),
         r"the target's lower class is 0, and at site 'b' it is -1"),
        (DataCard("multilabel", {"x": X, "y": Y}, 2, ("p", "q")), DataCard("multilabel", {"x": X, "y": Y}, 2, ("q", "p")),
         r"the targets are p, q, and at site 'b' they are q, p"),
    ],
)  # fmt: skip
def test_sites_that_disagree_are_named_with_the_column(a: DataCard, b: DataCard, match: str) -> None:
    with pytest.raises(DataError, match=match):
        merge_cards({"site 'a'": a, "site 'b'": b})


def test_sites_may_have_their_columns_in_any_order() -> None:
    rows = {
        "b": Dataset({"x": [[1.0, 9.0], [2.0, 8.0]], "y": [0.5, 1.5]}, features=("v", "u")),
        "a": Dataset({"x": [[7.0, 3.0]], "y": [2.5]}, features=("u", "v")),
    }
    for names in (("a", "b"), ("b", "a")):
        cards = {name: card_of(rows[name]) for name in names}
        agreed = merge_cards(cards)
        assert agreed.features == ("u", "v")
        found = {
            name: _in_agreed_codes(site_data(rows[name], name), agreed).shard(name)["x"].tolist() for name in names
        }
        assert found == {"a": [[7.0, 3.0]], "b": [[9.0, 1.0], [8.0, 2.0]]}
    assert merge_cards({"one": card_of(rows["b"]), "two": card_of(rows["b"])}).features == ("v", "u")


def test_labels_are_united_in_a_stated_order() -> None:
    def union(*labels: Sequence[str]) -> tuple[str, ...]:
        return merge_cards({str(i): card(given) for i, given in enumerate(labels)}).labels

    assert union(("well", "ill"), ("well", "ill")) == ("well", "ill")
    assert union(("well", "ill"), ("ill", "dead")) == ("dead", "ill", "well")
    assert union(("10", "9"), ("2",)) == ("2", "9", "10")
    assert merge_cards({"a": card(("0", "2")), "b": card(classes=2)}).labels == ("0", "1", "2")
    assert merge_cards({"a": card(classes=2), "b": card(classes=4)}).classes == 4


def test_words_beside_whole_numbers_are_no_further_classes() -> None:
    cards = {"site 'a'": card(("benign", "malignant")), "site 'b'": card(("0", "1"))}
    said = r"at site 'a' the classes are words such as 'benign', and at site 'b' they are whole numbers such as '0'"
    for order in (list(cards), list(reversed(cards))):
        with pytest.raises(DataError, match=said):
            merge_cards({name: cards[name] for name in order})
    # A name of a class may be a number where others are words, if that is so at one site.
    assert merge_cards({"a": card(("1", "2", "unknown")), "b": card(("1", "2"))}).labels == ("1", "2", "unknown")


def test_classes_that_one_site_alone_has_are_known() -> None:
    both, more = card(("benign", "malignant")), card(("benign", "malignant", "malignnat"))
    assert lone_classes({"a": both, "b": more, "c": card(("benign",))}) == {"b": ("malignnat",)}
    assert lone_classes({"a": more}) == lone_classes({"a": card(classes=2), "b": card(classes=4)}) == {}
    assert lone_classes({"a": card(("0", "2")), "b": card(classes=2)}) == {"a": ("2",), "b": ("1",)}


WORDS = st.lists(st.text("abcxyz", min_size=1, max_size=3), min_size=1, max_size=5)


@given(st.lists(WORDS, min_size=1, max_size=4))
def test_recoding_keeps_every_rows_label_and_equals_the_coding_of_all_rows(tables: list[list[str]]) -> None:
    coded = {}
    tables = [[*words, "common"] for words in tables]  # without a common class they would be two codings
    for i, words in enumerate(tables):
        names, codes = np.unique(words, return_inverse=True)
        coded[str(i)] = Dataset(
            {"x": np.zeros((len(words), 1)), "y": codes}, task="classification", labels=names.tolist()
        )
    cards = {name: card_of(rows) for name, rows in coded.items()}
    agreed = merge_cards(cards)
    assert agreed.labels == tuple(np.unique([word for words in tables for word in words]).tolist())
    for name, words in zip(coded, tables, strict=True):
        made = recoded(coded[name], cards[name], agreed)
        assert [agreed.labels[k] for k in made["y"]] == words
        assert (made.classes, made.about.labels) == (len(agreed.labels), agreed.labels)


def remote_of(islands: Islands) -> RemoteIslands:
    return RemoteIslands([str(n) for n in islands.names], islands.sizes, card_of(islands), islands.test, islands.name)


def test_rows_stay_where_they_are() -> None:
    remote = remote_of(atoll.data.iid(atoll.data.iris(), parties=3))
    with pytest.raises(PolicyError, match="the rows of 1 are at their site and not here"):
        remote.shard(1)
    with pytest.raises(PolicyError, match="the rows of 2 clients, columns x"):
        remote.gather([0, 1], "x")
    with pytest.raises(PolicyError, match="at their site"):
        remote.shard(2)
    assert (len(remote), remote.classes, remote.describe().rows) == (3, 3, 120)
    rows = example_rows(remote.card) if remote.card is not None else None
    assert rows is not None
    assert not np.any(rows.x)


def test_an_outline_knows_the_codes_of_text() -> None:
    table = {"ward": np.array(["icu", "east", "icu"]), "age": np.array([1.0, 2.0, 3.0]), "y": np.array(["a", "b", "a"])}
    words = {"ward": ["icu", "east"], "y": ["b", "a"]}
    data = from_table(table, target="y", categories=words)
    islands = Islands.from_datasets({"north": data})
    remote = RemoteIslands(["north"], [3], card_of(islands, {"ward": words["ward"]}))
    assert ModelColumns.of(remote.outline()) == ModelColumns.of(islands)
    assert remote.outline().shard(0).about.categories == {"ward": ("icu", "east")}


def test_the_servers_own_rows_must_be_of_the_sites_form() -> None:
    iris = atoll.data.iris()
    with pytest.raises(DataError, match=r"a column 'x' of shape \(64,\), but the sites have float32 of shape \(4,\)"):
        RemoteIslands(["a"], [3], card_of(iris), atoll.data.digits())


def _models() -> dict[str, tuple[Any, Dataset]]:
    digits = atoll.data.digits()
    parts = [
        rows.with_columns({"x": rows.x.reshape(-1, 1, 8, 8)}) for rows in (digits, digits.test) if rows is not None
    ]
    pictures = parts[0].with_test(parts[1])
    return {
        "mlp": (atoll.models.mlp(64, 10, (8,)), digits),
        "cnn": (atoll.models.cnn((1, 8, 8), 10, (4, 4), 8), pictures),
        "softmax": (atoll.models.linear(64, 10), digits),
        "classifier": (_estimator("SGDClassifier", loss="log_loss"), digits),
        "bayes": (_estimator("GaussianNB", module="naive_bayes"), digits),
        "regressor": (_estimator("SGDRegressor"), atoll.data.diabetes()),
        "least squares": (atoll.models.linear(10, 1), atoll.data.diabetes()),
    }


def _estimator(name: str, module: str = "linear_model", **settings: Any) -> Any:
    import importlib

    return getattr(importlib.import_module(f"sklearn.{module}"), name)(**settings)


@pytest.mark.parametrize("with_test", [True, False])
@pytest.mark.parametrize("name", list(_models()))
def test_a_learner_built_from_a_card_is_the_simulators(name: str, with_test: bool) -> None:
    model, rows = _models()[name]
    islands = atoll.data.iid(rows if with_test else rows.with_test(None), parties=5, seed=1)
    family = {"bayes": {"algorithm": atoll.algorithms.SufficientStatistics()}} if name == "bayes" else {}
    job = atoll.Training(model=model, rounds=3, **family.get(name, {}))
    outline = remote_of(islands).outline()
    real, far = job.learner(islands), job.learner(outline)
    assert type(far) is type(real)
    key = Rng.of(5)
    for (path, mine), (other, theirs) in zip(T.items(real.init(key)), T.items(far.init(key)), strict=True):
        assert path == other
        assert np.array_equal(np.asarray(mine), np.asarray(theirs))
    assert [task.spec() for task in job.named_tasks(real, islands)] == [
        task.spec() for task in job.named_tasks(far, outline)
    ]
    assert settings_of(real) == settings_of(far)


def settings_of(learner: Any) -> Any:
    """What a learner was made with, as far as it can be compared."""
    plain = (str, int, float, bool, tuple, type(None))
    found = {k: v for k, v in vars(learner).items() if isinstance(v, plain)}
    classes = getattr(learner, "classes", None)
    loss = getattr(getattr(getattr(learner, "training", None), "network", None), "loss", None)
    options = getattr(learner, "_options", None)
    return found, None if classes is None else list(classes), getattr(loss, "name", None), options


def test_a_model_that_does_not_fit_the_card_is_refused_before_any_work() -> None:
    remote = remote_of(atoll.data.iid(atoll.data.digits(), parties=2))
    with pytest.raises(DataError, match="label «9» does not fit a model with 9 outputs"):
        atoll.Training(model=atoll.models.linear(64, 9)).learner(remote.outline())
    with pytest.raises(CompositionError, match="needs every client in every round"):
        atoll.Training(
            model=atoll.models.linear(64, 10),
            algorithm=atoll.algorithms.VRLSGD(steps=2),
            selection=atoll.Uniform(1),
        ).learner(remote.outline())


def test_a_site_without_labels_takes_the_task_and_the_classes_of_the_others() -> None:
    bare = Dataset({"x": np.zeros((2, 3), np.float32), "y": [np.nan, np.nan]}, name="south")
    full = Dataset({"x": np.zeros((2, 3), np.float32), "y": [0, 1]}, labels=("ill", "well"), name="north")
    cards = {"site 'south'": card_of(bare), "site 'north'": card_of(full)}
    assert [card.labelled for card in cards.values()] == ["none", "all"]
    agreed = merge_cards(cards)
    assert (agreed.task, agreed.labels, agreed.labelled) == ("classification", ("ill", "well"), "part")
    made = recoded(bare, cards["site 'south'"], agreed)
    assert (made.task, made["labelled"].tolist(), made["y"].dtype) == ("classification", [False, False], np.int64)
    assert DataCard.unpack(agreed.packed(), "north") == agreed
    wide = Dataset({"x": np.zeros((2, 4), np.float32)})
    with pytest.raises(DataError, match=r"column 'x' is float32 of shape \(3,\), and at site 'south'"):
        merge_cards({"site 'north'": card_of(full), "site 'south'": card_of(wide)})
    assert merge_cards({"a": card_of(bare)}).task == "unlabelled"


def test_features_may_be_missing_if_they_may_at_one_site() -> None:
    whole, holes = card(("p",)), card(("p",), missing_features=True)
    agreed = merge_cards({"site 'a'": whole, "site 'b'": holes})
    assert agreed.missing_features
    assert DataCard.unpack(agreed.packed(), "server").missing_features
    assert not merge_cards({"site 'a'": whole}).missing_features
    with pytest.raises(MessageError, match="no data card"):
        DataCard.unpack({**agreed.packed(), "missing_features": "yes"}, "server")
