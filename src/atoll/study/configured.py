"""Sweeps of a configuration file."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from atoll.core.addresses import load_object
from atoll.core.errors import ConfigError
from atoll.runs import yaml
from atoll.runs.config import RunConfig, parse_config
from atoll.runs.folder import RunFolder

from .arms import combinations, label_of, require_new, seeds_of
from .code import digest_code, digest_data
from .result import StudyResult
from .running import Planned, run_planned

__all__ = ["sweep_config"]


def sweep_config(
    file: str | Path,
    settings: Sequence[str],
    *,
    seeds: int | Iterable[int],
    folder: str | Path,
    keep: Sequence[str] = (),
    parallel: int | None = None,
    metric: str | None = None,
    tell: Callable[[str], None],
) -> StudyResult:
    """Run a configuration under several settings and seeds; see ``atoll sweep``.

    Args:
        file: the YAML file.
        settings: ``path=a,b`` gives the values to try, ``path=a`` sets one. A value with a comma is written in brackets: ``path=[a, b]`` is one list.
        seeds: the number of seeds, or the seeds. A seed sets ``seed``, ``data.partition.seed`` and ``data.corruption_seed``: cohorts, mini-batches,
            the model's first weights, the partition and the corrupted clients change together.
        folder: the sweep's folder.
        keep: of these three, the ones that keep the file's value.
        parallel: runs at once; by default one for each core.
        metric: the metric to compare.
        tell: called with a line when a run ends.

    Raises:
        ConfigError: the file or a setting is invalid; no run has begun.
    """
    tried = _list_tried(settings)
    known = ("seed", "data.partition.seed", "data.corruption_seed")
    for path in keep:
        if path not in known[1:]:
            raise ConfigError(f"--keep {path!r}", where="sweep", remedy=f"use {' or '.join(known[1:])}")
    planned: list[Planned] = []
    sources: dict[str, Any] = {}
    fixed = [path for path, texts in tried.items() if len(texts) == 1]
    labels: list[str] = []
    for chosen in combinations(tried):
        label = require_new(label_of({path: text for path, text in chosen.items() if path not in fixed}), labels)
        labels.append(label)
        for seed in seeds_of(seeds):
            config = _config(file, chosen, {path: seed for path in known if path not in keep and path not in tried})
            place = RunFolder(Path(folder) / f"{label}_seed-{seed}")
            rows = digest_data(_load_data(config, sources))
            planned.append(
                Planned(place, _starter(config, sources), config.plain(), {**_digest_code_of(config), **rows})
            )
    run_planned(planned, parallel, tell)
    return StudyResult(Path(folder), tuple(one.folder.name for one in planned), metric)


def _list_tried(settings: Sequence[str]) -> dict[str, list[str]]:
    """Return the values to try of each setting, as text."""
    found: dict[str, list[str]] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set {setting!r}", where="sweep", remedy="write it as path.to.setting=value,value")
        found[path] = _pieces(text)
    return found


def _pieces(text: str) -> list[str]:
    """Cut a text at its commas, except those inside brackets."""
    pieces, depth = [""], 0
    for sign in text:
        depth += (sign in "[{(") - (sign in "]})")
        if sign == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += sign
    return [piece.strip() for piece in pieces]


def _config(file: str | Path, chosen: dict[str, str], seeds: dict[str, int]) -> RunConfig:
    """Return the configuration of one run. A seed is set where the file has what it belongs to."""
    tree = yaml.read(file)
    if isinstance(tree, dict):
        for path, text in chosen.items():
            yaml.override(tree, f"{path}={text}")
        data: Any = tree.get("data")
        parted = isinstance(data, dict) and data.get("partition") is not None
        corrupted = isinstance(data, dict) and bool(data.get("corruptions"))
        there = {
            "seed": True,
            "data.partition.seed": parted and _takes_seed(data["partition"]),
            "data.corruption_seed": corrupted,
        }
        for path, seed in seeds.items():
            if there[path]:
                yaml.override(tree, f"{path}={seed}")
        tree["folder"] = None
        tree["workers"] = 1  # whatever runs beside it, so that results do not depend on it
    return parse_config(tree, str(file))


def _takes_seed(part: Any) -> bool:
    """Tell whether a partitioner has a seed."""
    from atoll.runs.registries import registry

    name = part if isinstance(part, str) else part.get("name", "") if isinstance(part, dict) else ""
    try:
        _, found = registry("partition").find(str(name))
    except ConfigError:  # parsing says what is wrong
        return False
    return "seed" in inspect.signature(found).parameters


def _load_data(config: RunConfig, sources: dict[str, Any]) -> Any:
    """Return the data of a run; runs with the same data section share them."""
    key = config.data.model_dump_json()
    if key not in sources:
        sources[key] = config.islands()
    return sources[key]


def _starter(config: RunConfig, sources: dict[str, Any]) -> Callable[[RunFolder, bool], Any]:
    from atoll.runs.execution import execute

    def start(folder: RunFolder, resume: bool) -> Any:
        return execute(config, folder, resume=resume, report=False, islands=_load_data(config, sources))

    return start


def _digest_code_of(config: RunConfig) -> dict[str, str]:
    """Return digests of the user's code that a configuration names: its parts, and whatever is written as ``module:name``."""
    words: list[Any] = [config.plain()]
    named = []
    while words:
        word = words.pop()
        if isinstance(word, dict | list):
            words += word.values() if isinstance(word, dict) else word
        elif (
            isinstance(word, str)
            and all(part.isidentifier() for part in word.replace(":", ".").split("."))
            and ":" in word
        ):
            with contextlib.suppress(ImportError, AttributeError):  # a word that only looks like a name
                named.append(load_object(word))
    return digest_code(config.made(checking=True), *named)
