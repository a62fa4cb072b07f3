"""YAML that says what it means, and --set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml.scanner import Scanner

from atoll.core.errors import ConfigError
from atoll.runs import yaml

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1.5E+10", 1.5e10),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("1_000", 1000),
        ("-7", -7),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("0x10", 16),
        ("2026-01-02", "2026-01-02"),
        ("1:30", "1:30"),
        ("0o7", 7),
        ("[1, 2.0]", [1, 2.0]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    found = yaml.parse(text, "here")
    assert found == value
    assert type(found) is type(value)


@given(PLAIN)
def test_what_is_written_is_read_back(tree: Any) -> None:
    assert yaml.parse(yaml.dump({"tree": tree}), "here") == {"tree": tree}


def test_a_text_is_parsed_once_and_each_reader_has_a_tree_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first = yaml.parse("a: [1, {b: 2}]  # once", "here")
    first["a"][1]["b"] = "changed"
    with monkeypatch.context() as patch:
        patch.setattr(yaml, "_yaml", lambda: pytest.fail("it is parsed again"))
        assert yaml.parse("a: [1, {b: 2}]  # once", "here") == {"a": [1, {"b": 2}]}
    for _ in range(2):  # what is wrong is said each time, and where
        with pytest.raises(ConfigError, match="there"):
            yaml.parse("a: [", "there")


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the key 'lr' occurs twice \(in mine\.yaml, line 3\)"):
        yaml.parse("algorithm:\n  lr: 0.1\n  lr: 0.2\n", "mine.yaml")


def test_a_key_must_be_a_word() -> None:
    with pytest.raises(ConfigError, match="the key 1 is not a word"):
        yaml.parse("1: a", "mine.yaml")


def test_python_objects_are_refused() -> None:
    with pytest.raises(ConfigError, match="not valid YAML: could not determine a constructor"):
        yaml.parse("!!python/object/apply:os.system ['true']", "mine.yaml")


def test_what_is_no_yaml_is_placed() -> None:
    with pytest.raises(ConfigError, match=r"not valid YAML: .* \(in mine\.yaml, line 2\)"):
        yaml.parse("a: [1, 2\nb: 3", "mine.yaml")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read it: No such file or directory"):
        yaml.read(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match=r"cannot read it: .*utf-8"):
        yaml.read(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("algorithm.lr=1e-3", ("algorithm", "lr"), 1e-3),
        ("algorithm=FedSGD", ("algorithm",), "FedSGD"),
        ("selection.count=0.5", ("selection", "count"), 0.5),
        ("stop.0.value=0.9", ("stop", 0, "value"), 0.9),
        ("evaluation.clients=-1", ("evaluation", "clients"), -1),
        ("keep_best=test/loss", ("keep_best",), "test/loss"),
        ("uplink=[{name: Clip, bound: 2.0}]", ("uplink", 0, "bound"), 2.0),
        ("name=a=b", ("name",), "a=b"),
    ],
)
def test_settings_by_path(setting: str, path: tuple[Any, ...], value: Any) -> None:
    tree: Any = {"algorithm": {"name": "FedAvg"}, "selection": "Uniform", "stop": [{"name": "Target"}], "pacing": None}
    yaml.override(tree, setting)
    for step in path:
        tree = tree[step]
    assert tree == value


def test_the_short_form_of_a_part_is_opened() -> None:
    tree: dict[str, Any] = {"selection": "Uniform"}
    yaml.override(tree, "selection.count=3")
    assert tree == {"selection": {"name": "Uniform", "count": 3}}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("rounds", r"--set 'rounds'\. Remedy: write it as path\.to\.setting=value"),
        ("a..b=1", r"--set 'a\.\.b=1'"),
        ("rounds.x=1", "rounds=5 has no settings"),
        ("stop.3.value=1", "'3' is not a position in a list of 0"),
        ("algorithm.lr=[1", "not valid YAML"),
    ],
)
def test_settings_that_lead_nowhere(setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        yaml.override({"rounds": 5, "stop": [], "algorithm": "FedAvg"}, setting)


def test_reading_stops_at_the_first_bracket_too_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads a thousand letters ahead, and looks at every open bracket for each."""
    real, opened = Scanner.fetch_flow_collection_start, []

    def counted(scanner: Scanner, *given: Any) -> None:
        opened.append(scanner.flow_level)
        real(scanner, *given)

    monkeypatch.setattr(Scanner, "fetch_flow_collection_start", counted)
    with pytest.raises(ConfigError, match="nested too deeply"):
        yaml.parse("[" * 10_000, "job.yaml")
    assert max(opened) < 200
