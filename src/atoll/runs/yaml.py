"""YAML 1.2 for settings: keys are unique, ``1e-3`` is a number, ``no`` is a word, and a date is text."""

from __future__ import annotations

import copy
import functools
import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.scanner import Scanner

from atoll.core.errors import ConfigError

__all__ = ["dump", "override", "parse", "read"]

_MOST = 1_000_000
_REMEMBERED = 1 << 16
"""Characters of the longest text whose tree is remembered."""
_DEEPEST = 200


class _Constructor(SafeConstructor):
    """Constructor of plain YAML 1.2 values; keys are unique words, and a date is text."""

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[str, Any]:
        """Build a mapping.

        Raises:
            ConstructorError: a key is not a word, or occurs twice.
        """
        del deep
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise ConstructorError(None, None, f"the key {key!r} is not a word", key_node.start_mark)
            if key in found:
                raise ConstructorError(None, None, f"the key {key!r} occurs twice", key_node.start_mark)
            found[key] = self.construct_object(value_node, deep=True)
        return found


def _as_text(constructor: _Constructor, node: ScalarNode) -> str:
    return str(constructor.construct_scalar(node))


def _as_mapping(constructor: _Constructor, node: MappingNode) -> dict[str, Any]:
    return constructor.construct_mapping(node)


_Constructor.add_constructor("tag:yaml.org,2002:map", _as_mapping)
_Constructor.add_constructor("tag:yaml.org,2002:timestamp", _as_text)


class _Composer(Composer):
    """Composer that stops at the first value too many: reading a million takes minutes."""

    most, where = _MOST, ""
    _made = _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read a value.

        Raises:
            ConfigError: there are too many.
            RecursionError: they are nested too deeply.
        """
        self._made += 1
        self._depth += 1
        if self._made > self.most:
            raise ConfigError(
                f"it has more than {self.most} values",
                where=self.where,
                remedy="keep data in files of their own, or in a module",
            )
        if self._depth > _DEEPEST:
            raise RecursionError
        found = super().compose_node(parent, index)
        self._depth -= 1
        return found


class _Scanner(Scanner):
    """Scanner that stops where brackets are nested too deeply: for each token it looks at every open bracket."""

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803 - the library's name
        """Begin a list or mapping in brackets.

        Raises:
            RecursionError: there are too many open ones.
        """
        if self.flow_level >= _DEEPEST:
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass, to_push)


class _Representer(SafeRepresenter):
    """Representer that writes all values out, in their order."""

    sort_base_mapping_type_on_output = False

    def ignore_aliases(self, data: Any) -> bool:
        """Write a repeated value again, without an alias."""
        del data
        return True


def _text(representer: _Representer, value: str) -> ScalarNode:
    # The library writes some line breaks unescaped, and could not read them back.
    return representer.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')


_Representer.add_representer(str, _text)


def _yaml() -> YAML:
    """YAML 1.2 without Python objects."""
    made = YAML(typ="safe", pure=True)
    made.Scanner, made.Composer, made.Constructor, made.Representer = _Scanner, _Composer, _Constructor, _Representer
    made.default_flow_style, made.allow_unicode, made.width = False, True, 120
    return made


def _require_small(node: Node | None, known: dict[int, int], where: str) -> int:
    """Count the values of a document with every alias expanded: a few lines of aliases can expand to billions.

    Args:
        node: the document, or a part of it.
        known: sizes of parts by identity; 0 for parts that are still being counted.
        where: for errors.

    Raises:
        ConfigError: there are too many values, or a value contains itself.
    """
    if not isinstance(node, CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = 0
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_require_small(part, known, where) for part in parts)
    if not 0 < known[id(node)] <= _MOST:
        raise ConfigError(
            f"with its aliases expanded it has more than {_MOST} values, or contains itself",
            where=where,
            remedy="write values out in place of aliases (*name)",
        )
    return known[id(node)]


def parse(text: str, where: str, most: int = _MOST) -> Any:
    """Read YAML.

    Args:
        text: the text.
        where: the place that errors name.
        most: how many values it may have.

    Raises:
        ConfigError: the text is not YAML, a key occurs twice, it has too many values, also by its aliases, or they are
            nested more than 200 deep.
    """
    if len(text) > _REMEMBERED:
        return _parse(text, where, most)
    return copy.deepcopy(_parse_once(text, where, most))


@functools.lru_cache(maxsize=16)
def _parse_once(text: str, where: str, most: int) -> Any:
    """The tree of a short text: a run's settings are read five times while its results are written."""
    return _parse(text, where, most)


def _parse(text: str, where: str, most: int) -> Any:
    try:
        reader = _yaml()
        reader.composer.most, reader.composer.where = most, where
        node = reader.compose(text)
        _require_small(node, {}, where)
        return None if node is None else reader.constructor.construct_document(node)
    except RecursionError as error:
        raise ConfigError("its values are nested too deeply", where=where, remedy="reduce the nesting") from error
    except ConfigError:
        raise
    except (YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        said = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"not valid YAML: {said}", where=f"{where}{line}", remedy="correct the line") from error


def read(path: str | Path) -> Any:
    """Read a YAML file.

    Raises:
        ConfigError: the file cannot be read, or is not YAML.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot read it: {said}", where=str(path), remedy="give the path of a YAML file") from error
    return parse(text, str(path))


def dump(tree: Any) -> str:
    """Write YAML that ``parse`` reads back to the same values."""
    text = io.StringIO()
    _yaml().dump(tree, text)
    return text.getvalue()


def override(tree: dict[str, Any], setting: str) -> None:
    """Apply ``a.b=value`` to a configuration in place; a number in the path is a position in a list.

    Raises:
        ConfigError: the text is not a setting, or its path does not exist.
    """
    path, equals, text = setting.partition("=")
    if not equals or not all(path.split(".")):
        raise ConfigError(f"--set {setting!r}", remedy="write it as path.to.setting=value")
    steps = path.split(".")
    here: Any = tree
    for depth, step in enumerate(steps[:-1]):
        here = _inside(here, step, ".".join(steps[: depth + 1]), setting)
    _put(here, steps[-1], parse(text, f"--set {setting}"), setting)


def _inside(here: Any, step: str, path: str, setting: str) -> Any:
    key = _key(here, step, setting)
    if isinstance(here, dict) and here.get(step) is None:
        here[step] = {}
    if isinstance(here[key], str):  # the short form of a part
        here[key] = {"name": here[key]}
    if not isinstance(here[key], dict | list):
        raise ConfigError(f"{path}={here[key]!r} has no settings", where=f"--set {setting}", remedy="correct the path")
    return here[key]


def _put(here: Any, step: str, value: Any, setting: str) -> None:
    here[_key(here, step, setting)] = value


def _key(here: Any, step: str, setting: str) -> Any:
    if isinstance(here, dict):
        return step
    if not step.isdigit() or int(step) >= len(here):
        raise ConfigError(
            f"{step!r} is not a position in a list of {len(here)}",
            where=f"--set {setting}",
            remedy="count from 0, or set the whole list",
        )
    return int(step)
