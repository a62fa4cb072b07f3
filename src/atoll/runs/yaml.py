"""YAML that says what it means: no repeated keys, ``1e-3`` is a number, ``no`` is a word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from atoll.core.errors import ConfigError

__all__ = ["dump", "override", "parse", "read"]


class _Loader(yaml.SafeLoader):
    """Safe, with the scalars of YAML 1.2's core schema."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in (_BOOL, _FLOAT, _INT, _TIME)]
    for _BOOL, _FLOAT, _INT, _TIME in [[f"tag:yaml.org,2002:{t}" for t in ("bool", "float", "int", "timestamp")]]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|false|True|False|TRUE|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan)$"
    ),
    list("-+0123456789."),
)


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is not a word", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} stands here twice", key_node.start_mark
            )
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)).replace("_", ""))


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


_MOST = 1_000_000


def _require_small(node: yaml.Node | None, known: dict[int, int], where: str) -> int:
    """Count what a document comes to once every alias stands for what it names: a few lines can name each other to billions.

    Args:
        node: the document, or a part of it.
        known: sizes of parts by identity; 0 for those that are being counted.
        where: for errors.

    Raises:
        ConfigError: it is more than anybody writes, or holds itself.
    """
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = 0
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_require_small(part, known, where) for part in parts)
    if not 0 < known[id(node)] <= _MOST:
        raise ConfigError(
            f"with its aliases written out it has more than {_MOST} values, or holds itself",
            where=where,
            remedy="write values out in place of aliases (*name)",
        )
    return known[id(node)]


def parse(text: str, where: str) -> Any:
    """Read YAML.

    Raises:
        ConfigError: it is not YAML, a key stands twice, or it is a bomb of aliases.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            _require_small(node, {}, where)
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError as error:
        raise ConfigError("its values lie too deep in each other", where=where, remedy="write it flatter") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        said = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"not valid YAML: {said}", where=f"{where}{line}", remedy="correct the line") from error


def read(path: str | Path) -> Any:
    """Read a YAML file.

    Raises:
        ConfigError: it cannot be read, or is not YAML.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot read it: {said}", where=str(path), remedy="give the path of a YAML file") from error
    return parse(text, str(path))


class _Dumper(yaml.SafeDumper):
    """Block style outside, flow style for short lists, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out."""
        del data
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    """Quote a word that our own reader would take for something else."""
    if not value.isprintable():
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"')
    plain = _Loader("").resolve(yaml.ScalarNode, value, (True, False)) == "tag:yaml.org,2002:str"  # type: ignore[no-untyped-call]
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain and value else "'")


_Dumper.add_representer(str, _text)


def dump(tree: Any) -> str:
    """Write YAML that ``parse`` reads back to the same."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=120)


def override(tree: dict[str, Any], setting: str) -> None:
    """Apply ``a.b=value`` to a configuration in place; a number in the path is a position in a list.

    Raises:
        ConfigError: it is no setting, or the path leads nowhere.
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
        raise ConfigError(
            f"{path}={here[key]!r} holds no settings", where=f"--set {setting}", remedy="correct the path"
        )
    return here[key]


def _put(here: Any, step: str, value: Any, setting: str) -> None:
    here[_key(here, step, setting)] = value


def _key(here: Any, step: str, setting: str) -> Any:
    if isinstance(here, dict):
        return step
    if not step.isdigit() or int(step) >= len(here):
        raise ConfigError(
            f"{step!r} is no position in a list of {len(here)}",
            where=f"--set {setting}",
            remedy="count from 0, or set the whole list",
        )
    return int(step)
