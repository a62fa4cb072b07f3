"""A frozen encoder of texts, or of texts and images: a local folder of weights and a tokeniser, known by the hash of its files. Nothing is downloaded."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need
from atoll.native import cache_folder

from .images import ImageSettings, hash_images, prepare_images, read_settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Encoder",
    "EncoderKind",
    "Modality",
    "class_prompts",
    "copy_sharing",
    "hash_texts",
    "image_features",
    "prompts_of",
    "quiet",
    "text_features",
    "unit_rows",
]

EncoderKind = Literal["encoder", "causal"]
Modality = Literal["text", "image"]

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = ("pytorch_model.bin", "model.bin", "pytorch_model.bin.index.json")
_TOKENISERS = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
_HASHED = (".json", ".safetensors", ".txt", ".model")
_BATCH = 64
_KNOWN = dict[str, dict[str, "NDArray[np.float32]"]]()
_MOST_ROWS = 100_000
_MOST_KEPT = 4  # loaded encoders that a process keeps


@dataclass(frozen=True)
class Encoder:
    """A pretrained model in a folder, as ``save_pretrained`` of transformers writes it: ``config.json``, ``model.safetensors`` and a tokeniser's files.

    A dual encoder, a ``CLIPModel``, has features of texts and of images in one space; ``preprocessor_config.json`` says how it takes images. An encoder of images
    alone, such as a ``ViTModel``, has these settings in place of a tokeniser.

    The same folder is one object in memory, whatever number of clients, trainings and threads use it.

    Attributes:
        folder: the folder.
        digest: SHA-256 over the names and contents of its files of settings, weights and vocabulary, in hexadecimal digits.
        kind: ``"encoder"``: a model of hidden states; ``"causal"``: a language model.
        length: tokens of a text; longer texts are cut.
        modality: what its rows are; the classes of a tuning are texts all the same.
    """

    folder: str
    digest: str
    kind: EncoderKind = "encoder"
    length: int = 64
    modality: Modality = "text"

    @classmethod
    def open(
        cls,
        name: str,
        *,
        digest: str = "",
        kind: EncoderKind = "encoder",
        length: int = 64,
        modality: Modality | None = None,
    ) -> Encoder:
        """Find a folder, prove its hash, and refuse what would run code or lacks a part.

        Args:
            name: a folder, or its name below the folder that ``ATOLL_MODELS`` names.
            digest: the hash that it must have; empty for any.
            kind: see the class.
            length: see the class.
            modality: see the class; ``None`` for texts where it takes them.

        Raises:
            DataError: there is no such folder, a file is missing, weights are pickled, or it has another hash.
            ConfigError: its model is code of its own, or takes no rows of the modality, or the length is no whole number of at least 1.
        """
        if length < 1:
            raise ConfigError(f"length={length}", where="Encoder", remedy="use at least 1 token, such as 64")
        place = _find_folder(name)
        _require_files(place)
        found = _hash_folder(str(place), tuple((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in _files(place)))
        if digest and found != digest:
            raise DataError(
                f"the encoder in {place.name!r} has the hash {found[:12]}…, and the job was made for {digest[:12]}…",
                where="Encoder",
                remedy="copy the folder that the job was made with, or ask for a job with digest= of yours; `atoll adapters hash DIR` prints it",
            )
        made = cls(str(place), found, kind, length)
        made = replace(made, modality=modality or made.modalities[0])
        if modality == "image" and "image" not in made.modalities:
            raise ConfigError(
                f"the encoder in {place.name!r} takes no images",
                where="Encoder",
                remedy="use a folder of a CLIPModel or a ViTModel; `atoll adapters pretrain` makes a small dual encoder",
            )
        if modality == "text":
            made.require_texts()
        return made

    def require_texts(self) -> None:
        """Refuse an encoder of images alone.

        Raises:
            ConfigError: it has no features of texts.
        """
        if "text" not in self.modalities:
            raise ConfigError(
                f"the encoder in {Path(self.folder).name!r} takes images alone, and prompts of classes are texts",
                where="Encoder",
                remedy="train a head on its features, with image= and LinearHead() (`atoll adapters train --image COLUMN --method linear`), or use a folder of a CLIPModel",
            )

    @property
    def model(self) -> Any:
        """The frozen model in evaluation mode, in single precision. It is shared: copy what you change, see `copy_sharing`."""
        return _load_model(self.folder, self.digest, self.kind)

    @property
    def tokeniser(self) -> Any:
        """The tokeniser."""
        return _load_tokeniser(self.folder, self.digest)

    @property
    def dual(self) -> bool:
        """Whether it has features of texts and images in one space."""
        return _read_config(self.folder, self.digest).get("model_type") == "clip" and self.kind == "encoder"

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """What it has features of."""
        if self.dual:
            return ("text", "image")
        return ("image",) if _sees_alone(_read_config(self.folder, self.digest)) else ("text",)

    @property
    def width(self) -> int:
        """Numbers in a row's features."""
        config = self.model.config
        if self.dual:
            return int(config.projection_dim)
        return int(config.hidden_size if hasattr(config, "hidden_size") else config.hidden_sizes[-1])

    @property
    def longest(self) -> int:
        """Tokens of a text that it takes: ``length``, or as many as it has places for."""
        return min(self.length, self.places or self.length)

    @property
    def places(self) -> int | None:
        """Tokens that the model has places for; ``None`` where nothing bounds them."""
        config = self.model.config
        held = getattr(config.text_config if self.dual else config, "max_position_embeddings", None)
        if held is None:
            return None
        table = getattr(getattr(self.model, "embeddings", None), "position_embeddings", None)
        first = getattr(table, "padding_idx", None)  # RoBERTa's places begin behind that of the padding
        return int(held) - (0 if first is None else first + 1)

    @property
    def image_settings(self) -> ImageSettings:
        """How images become numbers."""
        config = _read_config(self.folder, self.digest)
        side = config.get("vision_config", {} if self.dual else config).get("image_size", 224)
        return ImageSettings.read(self.folder, int(side), needed=not self.dual)

    def tokenise(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return ids and masks, ``(rows, 2, longest)``, padded to one length for all parties."""
        longest = self.longest
        rows = np.zeros((len(texts), 2, longest), dtype=np.int64)
        if len(texts):
            made = self.tokeniser(
                list(texts), padding="max_length", truncation=True, max_length=longest, return_tensors="np"
            )
            rows[:, 0], rows[:, 1] = made["input_ids"], made["attention_mask"]
        return rows

    def encode(self, texts: Sequence[str], *, cached: bool = True) -> NDArray[np.float32]:
        """Return the means of the last hidden states over each text's tokens, ``(rows, width)``; of a dual encoder, its projected features of texts.

        A file keeps them, named after the hash of weights, preprocessing and texts: another encoder, length or text has another file.

        Args:
            texts: the texts.
            cached: whether to read and write that file, in the cache folder of Atoll (``ATOLL_CACHE``).

        Raises:
            ConfigError: it takes images alone.
        """
        self.require_texts()
        how = f"{self.digest} {'projected' if self.dual else 'mean'} {self.length}"
        return self._features(how, texts, lambda places: self._encode_new([texts[at] for at in places]), cached)

    def encode_images(self, images: Sequence[Any], *, cached: bool = True) -> NDArray[np.float32]:
        """Return features of images, ``(rows, width)``: a dual encoder's are projected, any other's are the mean of the last hidden states over places. A file keeps them, as those of texts.

        Args:
            images: names of files, or arrays of pixels: ``(height, width)``, or with three channels last or first; uint8, or floating numbers of 0 to 1.
            cached: see `encode`.

        Raises:
            DataError: a file is missing or holds no image, or an array is none.
            ConfigError: the folder's settings make other sizes than the model takes.
        """
        settings = self.image_settings

        def encode(places: Sequence[int]) -> NDArray[np.float32]:
            torch, model = need("torch", "torch", "an encoder"), self.model
            found = np.zeros((len(places), self.width), dtype=np.float32)
            with torch.no_grad():
                for begin in range(0, len(places), _BATCH):
                    part = prepare_images([images[at] for at in places[begin : begin + _BATCH]], settings)
                    found[begin : begin + len(part)] = image_features(model, torch.from_numpy(part)).numpy()
            return found

        return self._features(f"{self.digest} images {settings}", hash_images(images), encode, cached)

    def _features(
        self, how: str, names: Sequence[str], encode: Callable[[Sequence[int]], NDArray[np.float32]], cached: bool
    ) -> NDArray[np.float32]:
        """Return features from the file that keeps them, or make them.

        Those of a row that this process has encoded before, in whatever data set, are taken again.
        """
        place = cache_folder().parent / "features" / f"{hash_texts(names, how)}.npy"
        known = _KNOWN.setdefault(how, {})
        if cached and place.is_file():
            with suppress(OSError, ValueError, EOFError):  # a file that a crash has cut off is made again
                kept = np.load(place, allow_pickle=False)
                if kept.dtype == np.float32 and kept.ndim == 2 and len(kept) == len(names):
                    known.update(zip(names, kept, strict=True))
                    return np.asarray(kept)
        lacking: dict[str, int] = {}
        for at, name in enumerate(names):
            if name not in known:
                lacking.setdefault(name, at)
        known.update(zip(lacking, encode([*lacking.values()]), strict=True))
        made = np.array([known[name] for name in names], dtype=np.float32).reshape(len(names), self.width)
        if sum(map(len, _KNOWN.values())) > _MOST_ROWS:
            _KNOWN.clear()
        if cached:
            _write_atomically(place, made)
        return made

    def _encode_new(self, texts: Sequence[str]) -> NDArray[np.float32]:
        torch, model = need("torch", "torch", "an encoder"), self.model
        rows = self.tokenise(texts)
        found = np.zeros((len(rows), self.width), dtype=np.float32)
        order = np.argsort(rows[:, 1].sum(1), kind="stable")  # texts of one length together: little padding
        with torch.no_grad():
            for begin in range(0, len(order), _BATCH):
                places = order[begin : begin + _BATCH]
                longest = max(1, int(rows[places, 1].sum(1).max()))
                found[places] = self._encode_batch(torch, model, rows[places], longest)
        return found

    def _encode_batch(self, torch: Any, model: Any, rows: NDArray[np.int64], longest: int) -> NDArray[np.float32]:
        right = bool((rows[:, 1, longest:] == 0).all())  # a tokeniser may pad on the left
        part = torch.from_numpy(np.ascontiguousarray(rows[:, :, :longest] if right else rows))
        return np.asarray(text_features(model, part[:, 0], part[:, 1]).numpy())


def text_features(model: Any, ids: Any, mask: Any) -> Any:
    """Return the features of tokens ``(rows, length)``: of a ``CLIPModel`` the projected ones, of any other model the mean of the last hidden states over a text's tokens."""
    if hasattr(model, "get_text_features"):
        return _pooled_of(model.get_text_features(input_ids=ids, attention_mask=mask))
    # Virtual tokens stand before those of the text.
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state[:, -ids.shape[1] :]
    weight = mask.unsqueeze(-1).to(states.dtype)
    return (states * weight).sum(1) / weight.sum(1).clamp(min=1.0)


def image_features(model: Any, pixels: Any) -> Any:
    """Return the features of prepared images: of a ``CLIPModel`` the projected ones, of any other model the mean of the last hidden states over all places.

    Some models add a summary of their own, but folders often lack its weights.
    """
    if hasattr(model, "get_image_features"):
        return _pooled_of(model.get_image_features(pixel_values=pixels))
    # (rows, places, width); of convolutions (rows, width, height, width).
    states = model(pixel_values=pixels).last_hidden_state
    return states.mean(1) if states.dim() == 3 else states.flatten(2).mean(2)


def _pooled_of(made: Any) -> Any:
    """Return the projected features that a ``CLIPModel`` makes: transformers 5 puts them into an object."""
    return getattr(made, "pooler_output", made)


def hash_texts(texts: Sequence[str], about: str) -> str:
    """Return a hash of texts in their order, and of how they are used."""
    made = hashlib.sha256(about.encode())
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        made.update(len(raw).to_bytes(8, "little"))
        made.update(raw)
    return made.hexdigest()


# The folder.


def _find_folder(name: str) -> Path:
    own = os.environ.get("ATOLL_MODELS")
    places = [Path(name), *([Path(own) / name, Path(own) / Path(name).name] if own else [])]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise DataError(
            f"there is no encoder {name!r}",
            where="Encoder",
            remedy="give a folder with config.json, model.safetensors and a tokeniser; ATOLL_MODELS names a folder of such folders. Nothing is downloaded",
        )
    return found.resolve()


def _files(place: Path) -> list[Path]:
    return sorted(file for file in place.iterdir() if file.suffix in _HASHED and file.is_file())


def _require_files(place: Path) -> None:
    where = f"encoder {place.name!r}"
    names = {file.name for file in place.iterdir()}
    if "config.json" not in names:
        raise DataError("there is no config.json", where=where, remedy="save the model with save_pretrained(folder)")
    if not names & set(_WEIGHTS):
        pickled = next((name for name in _PICKLES if name in names), None)
        what = "there are no weights" if pickled is None else f"its weights are in {pickled}, which is a pickle"
        raise DataError(
            what, where=where, remedy="save them as model.safetensors: model.save_pretrained(folder) writes it"
        )
    if not (names & set(_TOKENISERS) or _sees_alone(read_settings(place / "config.json", where))):
        raise DataError(
            "there is no tokeniser", where=where, remedy="save it beside the model: tokenizer.save_pretrained(folder)"
        )
    for name in ("config.json", "tokenizer_config.json"):
        settings = read_settings(place / name, where) if name in names else {}
        if settings.get("auto_map"):
            raise ConfigError(
                f"{name} names code of its own (auto_map), which trust_remote_code would run",
                where=where,
                remedy="use a model that transformers itself has, and save it again with save_pretrained",
            )


def _sees_alone(config: Mapping[str, Any]) -> bool:
    """Say whether the settings are those of a model of images without a side of texts."""
    return ("image_size" in config or "num_channels" in config) and "vocab_size" not in config


@functools.lru_cache(maxsize=32)
def _read_config(folder: str, digest: str) -> dict[str, Any]:
    del digest
    return read_settings(Path(folder) / "config.json", f"encoder {Path(folder).name!r}")


@functools.lru_cache(maxsize=32)
def _hash_folder(folder: str, files: tuple[tuple[str, int, int], ...]) -> str:
    """Hash names and contents; the files' sizes and times are the memory's key."""
    made = hashlib.sha256()
    for name, size, _ in files:
        made.update(f"{name}\0{size}\0".encode())
        with (Path(folder) / name).open("rb") as file:
            while part := file.read(1 << 20):
                made.update(part)
    return made.hexdigest()


# The model, once a process.


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what transformers and peft tell of their own next versions, and progress bars, from the user of a job."""
    logging = need("transformers.utils.logging", "encoders", "an encoder")
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


@functools.lru_cache(maxsize=_MOST_KEPT)
def _load_model(folder: str, digest: str, kind: str) -> Any:
    del digest  # other weights in the same folder are another model
    torch, library = need("torch", "torch", "an encoder"), need("transformers", "encoders", "an encoder")
    loader = library.AutoModelForCausalLM if kind == "causal" else library.AutoModel
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # layers that a folder lacks (a pooler) are the same in every process
        try:
            made, about = loader.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32,
                output_loading_info=True,
            )  # fmt: skip
        except Exception as error:
            raise _refuse_folder(folder, "it", error) from error
    lacking = sorted(name for name in about["missing_keys"] if "pool" not in name)
    if lacking:  # transformers would draw them, and say so in a log
        raise DataError(
            f"its weights lack {len(lacking)} of the model's values, such as {lacking[0]!r}",
            where=f"encoder {Path(folder).name!r}",
            remedy="save the whole model again with save_pretrained, with a config.json that is its own",
        )
    # How the file's names became the model's: what cannot be copied, and only saving would read.
    vars(made).pop("_weight_conversions", None)
    return made.eval().requires_grad_(False)


def _refuse_folder(folder: str, what: str, error: Exception) -> DataError:
    """Return what a folder is refused with: the libraries that read it end in errors of any class."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DataError(
        f"transformers cannot load {what}: {said}",
        where=f"encoder {Path(folder).name!r}",
        remedy="save the model and its tokeniser again with save_pretrained of the transformers installed here",
    )


@functools.lru_cache(maxsize=_MOST_KEPT)
def _load_tokeniser(folder: str, digest: str) -> Any:
    del digest
    library = need("transformers", "encoders", "an encoder")
    with quiet():
        try:
            made = library.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise _refuse_folder(folder, "its tokeniser", error) from error
    if made.pad_token is None:
        made.pad_token = made.eos_token  # a masked token may be any
    if made.pad_token is None:
        raise DataError(
            "its tokeniser has no token for padding",
            where=f"encoder {Path(folder).name!r}",
            remedy="set tokenizer.pad_token and save it again",
        )
    return made


def copy_sharing(model: Any) -> Any:
    """Return a model with layers of its own over the same frozen tensors: what is put into its layers leaves the other alone."""
    from copy import deepcopy

    return deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def _write_atomically(place: Path, rows: NDArray[np.float32]) -> None:
    """Keep features for later runs; a disk that is full or read-only costs time alone. They tell of texts, so only their owner may read them."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=place.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                np.save(file, rows, allow_pickle=False)
            Path(name).replace(place)
        finally:
            Path(name).unlink(missing_ok=True)


def prompts_of(encoder: Encoder, labels: list[str], prompt: str) -> NDArray[np.float32]:
    """Return the features of a text for each class, ``(classes, width)``.

    Raises:
        ConfigError: the texts are cut before they differ.
    """
    texts = [(prompt or "{label}").replace("{label}", label) for label in labels]
    rows, first = encoder.tokenise(texts), dict[bytes, int]()
    for place, row in enumerate(rows):
        other = first.setdefault(row.tobytes(), place)
        whole = [encoder.tokeniser(texts[at])["input_ids"] for at in (other, place)]
        if whole[0] != whole[1]:
            raise ConfigError(
                f"the prompts of {labels[other]!r} and {labels[place]!r} are the same in their first {encoder.longest} tokens",
                where="Tuning.prompt",
                remedy="use a shorter prompt, or a larger length= if the encoder takes more",
            )
    return encoder.encode(texts, cached=False)


def class_prompts(encoder: Encoder, labels: list[str], prompt: str, prompted: bool) -> NDArray[np.float32] | None:
    """Return the features of a text for each class; ``None`` where a method needs none, or where an encoder of images alone has none.

    Raises:
        ConfigError: there is a prompt, and the encoder takes images alone.
    """
    if prompt:
        encoder.require_texts()
    return prompts_of(encoder, labels, prompt) if (prompt or prompted) and "text" in encoder.modalities else None


def unit_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows of length 1; zeros stay."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), dtype=np.float32)
