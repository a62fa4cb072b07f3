"""MONAI bundles: a network, its weights and its loss, as a bundle's configuration describes them, for a `Training`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, nearest
from atoll.core.extras import need

__all__ = ["MonaiBundle", "monai_bundle"]

_FORMS = (".json", ".yaml", ".yml")


@dataclass(frozen=True)
class MonaiBundle:
    """What a training takes of a bundle.

    Attributes:
        folder: the bundle.
        metadata: what ``configs/metadata.json`` says.
        build: makes the network, with the bundle's weights if it has some: the ``model`` of a `Training`.
        loss: of output and target, as the bundle defines it: the ``loss`` of a `Training`.
    """

    folder: Path
    metadata: Mapping[str, Any]
    build: Callable[[], Any] = field(repr=False)
    loss: Callable[[Any, Any], Any] = field(repr=False)


@checked_call
def monai_bundle(
    folder: str | Path, *, config: str = "train", network: str = "network_def", loss: str = "loss", weights: bool = True
) -> MonaiBundle:
    """Read a bundle, without running its workflow: Atoll trains.

    A bundle is a folder with ``configs/metadata.json``, ``configs/train.json`` (or ``.yaml``) and perhaps ``models/model.safetensors``. Expressions in its
    configuration (``$...``) are Python and run on use, so a bundle is code: load those alone that you would run. Atoll reads no pickles: of ``models/model.pt`` make
    ``models/model.safetensors`` once, with ``safetensors.torch.save_file(network.state_dict(), file)``.

    Args:
        folder: the bundle.
        config: name of the configuration below ``configs``.
        network: the network's key in it; ``a#b`` reaches into sections.
        loss: the loss's key.
        weights: whether to begin with the bundle's weights, if it has some.

    Raises:
        MissingExtraError: MONAI is not installed.
        ConfigError: there is no such bundle, configuration or key, the weights do not fit the network, or are a pickle.

    Example:
        ``bundle = monai_bundle("spleen"); Training(model=bundle.build, loss=bundle.loss)``
    """
    place = Path(folder)
    files = {form: place / "configs" / f"{config}{form}" for form in _FORMS}
    found = next((file for file in files.values() if file.is_file()), None)
    if found is None:
        raise ConfigError(
            f"there is no configuration {config!r}",
            where=str(place),
            remedy=f"give the folder of a MONAI bundle, with {files['.json'].relative_to(place)}",
        )
    meta = place / "configs" / "metadata.json"
    parser = need("monai.bundle", "monai", "a MONAI bundle", where="monai_bundle").ConfigParser()
    parser.read_config(str(found))
    if meta.is_file():
        parser.read_meta(str(meta))
    known = [key for key in parser.config if not key.startswith("_")]
    for key in (network, loss):
        if parser.get(key) is None:
            raise ConfigError(
                f"no {key!r}.{nearest(key, known)}", where=str(found), remedy=f"name one of {', '.join(known)}"
            )
    measured = parser.get_parsed_content(loss)

    def build() -> Any:
        made = parser.get_parsed_content(network, lazy=False)
        if weights:
            _load(made, place / "models")
        return made

    return MonaiBundle(place, dict(parser.get("_meta_") or {}), build, lambda output, target: measured(output, target))


def _load(network: Any, folder: Path) -> None:
    file, pickled = folder / "model.safetensors", folder / "model.pt"
    if not file.is_file():
        if pickled.is_file():
            raise ConfigError(
                "the weights are a pickle, which Atoll does not read",
                where=str(pickled),
                remedy="save them once as model.safetensors beside it: safetensors.torch.save_file(network.state_dict(), file); or pass weights=False",
            )
        return
    torch = need("torch", "torch", "a MONAI bundle", where="monai_bundle")
    from safetensors.numpy import load_file

    try:
        network.load_state_dict({name: torch.from_numpy(values) for name, values in load_file(file).items()})
    except Exception as error:  # of many kinds: a damaged file, other names, other shapes
        raise ConfigError(
            f"the weights do not fit the network: {str(error).splitlines()[0]}",
            where=str(file),
            remedy="save the network's own state_dict(), or pass weights=False",
        ) from error
