"""Saved models of every kind, read to predict: a file, or the folder of a run or of a fetched job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atoll.core.addresses import load_object
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.errors import AtollError, CheckpointError, ConfigError, DataError
from atoll.data.model_columns import TableModel

from .folder import RunFolder
from .kept import read_model
from .parts import part_class
from .schema import collect, refused

__all__ = ["load_model"]

FILES = ("model.safetensors", "fit.json", "model.json", "model.txt")
"""Files of models in the folder of a run or of a job."""


def load_model(place: str | Path, *, model: str | None = None) -> TableModel:
    """Read a saved model of trees, of a fit or of a training, which predicts the rows of tables by the names of their columns.

    Args:
        place: ``model.json`` or ``model.txt`` of trees, ``fit.json``, ``model.safetensors``; or the folder of a run, or of a job that you fetched.
        model: of a training: the class or function that makes its network, as ``module:name``. By default what the settings beside the file name.

    Raises:
        DataError: the file is not a model, or does not know its columns.
        CheckpointError: there is no model, or it is not the one that was trained.
        ConfigError: the settings do not say how a training's model is made.
    """
    file = _find_file(Path(place))
    if file.suffix == ".safetensors":
        return _load_training(file, model)
    content = _read(file)
    # A file may have any name: its content says what it is.
    if b'"atoll.fit/' in content[:200]:
        from atoll.fitting import FittedModel

        return FittedModel.load(file).table_model()
    from atoll.trees.model_files import ensemble_of

    return ensemble_of(content, str(file)).table_model()


def _find_file(place: Path) -> Path:
    if place.is_file():
        return place
    if not place.is_dir():
        raise CheckpointError(
            "there is no such model, run or folder", where=str(place), remedy="list the runs with `atoll runs`"
        )
    found = [place / name for name in FILES if (place / name).is_file()]
    if not found:
        raise CheckpointError(
            "the folder holds no model that predicts rows",
            where=str(place),
            remedy=f"give a run of a training, of trees or of a fit that has ended: its folder holds one of {', '.join(FILES)}; a model over columns at several sites answers the kit of its guest's site alone",
        )
    return found[0]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"the model cannot be read: {error.strerror or error}",
            where=str(file),
            remedy="give a file that you may read",
        ) from error


def _metadata_of(file: Path) -> dict[str, str]:
    """The texts of a safetensors file: its header is JSON, after eight bytes of its length."""
    content = _read(file)
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return dict(json.loads(header.get("__metadata__", {}).get("atoll", "{}")))
    except (ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"the model cannot be read: {error}", where=str(file), remedy="resume the run, which writes it again"
        ) from error


def _load_training(file: Path, model: str | None) -> TableModel:
    from atoll.learn.algorithms.fedavg import FedAvg
    from atoll.learn.learner import LearnerSettings, adapt
    from atoll.learn.round.predicting import columns_in, require_same_scores, table_model_of

    metadata, where = _metadata_of(file), str(file)
    columns = columns_in(metadata, where)
    if columns is None:
        raise DataError(
            "the model does not say which columns it takes",
            where=where,
            remedy="train it again, on rows of numbers: a version of Atoll before 0.1.0 wrote it, or its rows are texts",
        )
    settings = _settings_beside(file)
    made = _make_model(settings, model, where)
    islands = columns.outline()
    try:
        learner = adapt(made, LearnerSettings(algorithm=FedAvg(), loss=_loss_of(settings)), islands)
        params = _in_form(learner, read_model(file), where)
        found = table_model_of(learner, params, columns, "the model", metadata)
    except AtollError:
        raise
    except (RuntimeError, TypeError, ValueError, KeyError) as error:  # the network is the user's own
        raise ConfigError(
            f"the model that its settings make does not take the saved parameters: {error}",
            where=where,
            remedy="name the code that trained it with model='module:name'",
        ) from error
    if found is None:
        raise DataError(
            f"a {type(made).__name__} has no scores of rows",
            where=where,
            remedy="predict with result.model in Python",
        )
    require_same_scores(learner, params, found.columns, metadata, where)
    return found


def _settings_beside(file: Path) -> Mapping[str, Any]:
    folder = RunFolder(file.parent)
    return folder.settings() if folder.begun else {}


def _make_model(settings: Mapping[str, Any], given: str | None, where: str) -> Any:
    """The network or estimator, as a configuration makes it."""
    said = settings.get("model") if given is None else given
    remedy = "name the class or function that makes it, with model='module:name'"
    if said is None:
        raise ConfigError("no settings beside the file say how its model is made", where=where, remedy=remedy)
    kind: Any = part_class("model")
    try:
        return kind.model_validate(said).build("model")
    except ValidationError as error:
        try:
            raise refused(collect(error, said, lambda loc: []), where) from error
        except ConfigError as problem:
            raise ConfigError(f"the model cannot be made again: {problem.what}", where=where, remedy=remedy) from error


def _loss_of(settings: Mapping[str, Any]) -> Any:
    """The loss, as far as the settings say it; a class stands for what a run from Python made of it.

    What the scores are is in the file: a loss that is not there any more, as a lambda, changes no prediction.
    """
    said = settings.get("loss", "auto")
    try:
        found = load_object(said) if isinstance(said, str) and ":" in said else said
        found = found() if isinstance(found, type) else found
    except (ImportError, AttributeError, TypeError):
        return _stand_in
    return found if isinstance(found, str) or callable(found) else "auto"


def _stand_in(output: Any, target: Any) -> Any:
    """Any loss of outputs of any form."""
    return (output.reshape(len(output), -1) + 0 * target.reshape(len(target), -1)[:, :1]).mean(1)


def _in_form(learner: Any, arrays: Mapping[str, Any], where: str) -> Any:
    """The arrays of a file in the form of the learner's parameters: a tree, and the buffers that travel."""
    start = learner.init(Rng.of(0))
    names = [name for name, _ in T.items(start)]
    lacking = [name for name in names if name not in arrays]
    if lacking:
        raise ConfigError(
            f"the model that its settings make has parameters {lacking[0]!r}, which the file lacks",
            where=where,
            remedy="name the code that trained it with model='module:name'",
        )
    for name, leaf in T.items(start):
        if tuple(leaf.shape) != arrays[name].shape:
            raise ConfigError(
                f"parameters {name!r} have shape {list(arrays[name].shape)} in the file and {list(leaf.shape)} in the model that its settings make",
                where=where,
                remedy="name the code that trained it with model='module:name'",
            )
    tree = T.rebuild(start, [arrays[name] for name in names])
    further = {name: value for name, value in arrays.items() if name not in names}
    return {**tree, **further} if isinstance(tree, dict) else tree
