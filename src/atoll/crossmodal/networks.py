"""The own networks of parties, as descriptions; `layers` makes modules of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.errors import ConfigError
from atoll.core.extras import need

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from atoll.adapters import Encoder

__all__ = ["BiGRU", "FrameCNN", "OwnNetwork", "PretrainedText", "SequenceTransformer", "VectorMLP"]


@dataclass(frozen=True, kw_only=True)
class OwnNetwork:
    """A party's own network: a description, of which `build` makes a module. Derive from it for a network of your own.

    A module takes a batch of sequences and their lengths, ``(rows, longest)`` numbers of words or ``(rows, longest, width)`` numbers of frames, and returns
    logits ``(rows, classes)``. Number 0 is padding, 1 is a word that training had in one row or none.

    Attributes:
        reads_words: whether a text side gives it numbers of words. Otherwise `encode` makes features of the whole text, which it gets as one frame.
    """

    reads_words: ClassVar[bool] = True

    @property
    def identity(self) -> str:
        """What else decides its answers, beside settings and weights: of a pretrained network the hash of its files. A party keeps it with its weights."""
        return ""

    def encode(self, texts: Sequence[str]) -> NDArray[Any]:
        """Return features of whole texts, ``(rows, width)``, for a network that reads no words.

        Raises:
            NotImplementedError: it reads words.
        """
        raise NotImplementedError

    def build(self, inputs: int, classes: int, *, words: bool) -> nn.Module:
        """Make the module.

        Args:
            inputs: of text the words of the vocabulary, of speech the width of a frame.
            classes: outputs.
            words: whether it reads words.

        Raises:
            NotImplementedError: the class does not say how.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class FrameCNN(OwnNetwork):
    """A convolutional network (Kim 2014): filters of several widths over the sequence, their largest values, a linear layer.

    Attributes:
        filters: filters of each width.
        widths: steps that a filter sees.
        dropout: share of the values that a step leaves out.
    """

    filters: int = 32
    widths: tuple[int, ...] = (3, 4, 5)
    dropout: float = 0.5

    def __post_init__(self) -> None:
        if self.filters < 1 or not self.widths or min(self.widths) < 1:
            raise ConfigError(f"filters={self.filters}, widths={self.widths}", where="FrameCNN", remedy="use whole numbers of at least 1")  # fmt: skip

    def build(self, inputs: int, classes: int, *, words: bool) -> nn.Module:
        """Make the module."""
        return _layers().Convolutions(self, inputs, classes, words=words)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class BiGRU(OwnNetwork):
    """Gated recurrent units in both directions, in layers; the mean of their states; a linear layer.

    Attributes:
        width: units of each direction.
        layers: layers.
        dropout: share of the values that a step leaves out.
    """

    width: int = 32
    layers: int = 2
    dropout: float = 0.3

    def __post_init__(self) -> None:
        if self.width < 1 or self.layers < 1:
            raise ConfigError(f"width={self.width}, layers={self.layers}", where="BiGRU", remedy="use whole numbers of at least 1")  # fmt: skip

    def build(self, inputs: int, classes: int, *, words: bool) -> nn.Module:
        """Make the module."""
        return _layers().Recurrent(self, inputs, classes, words=words)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class SequenceTransformer(OwnNetwork):
    """A transformer encoder with sinusoidal positions; the mean over the sequence; a linear layer.

    Attributes:
        width: numbers of a position.
        heads: heads of attention.
        layers: layers.
        dropout: share of the values that a step leaves out.
    """

    width: int = 32
    heads: int = 4
    layers: int = 2
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.width < 2 or self.width % 2 or self.heads < 1 or self.width % self.heads or self.layers < 1:
            raise ConfigError(f"width={self.width}, heads={self.heads}, layers={self.layers}", where="SequenceTransformer", remedy="use an even width that the number of heads divides, and at least one layer")  # fmt: skip

    def build(self, inputs: int, classes: int, *, words: bool) -> nn.Module:
        """Make the module."""
        return _layers().Attentive(self, inputs, classes, words=words)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class PretrainedText(OwnNetwork):
    """A pretrained encoder of text, frozen, and a hidden layer on its features. The encoder is a local folder, see `atoll.adapters.Encoder`; features are kept on disk.

    Like any own network it stays at its party, so parties may have different encoders under the same name.

    Attributes:
        encoder: the folder, or its name below the folder that ``ATOLL_MODELS`` names.
        digest: the hash that it must have; empty for any. ``atoll adapters hash DIR`` prints it.
        length: tokens of a text; longer texts are cut.
        hidden: units of the layer.
        dropout: share of the values that a step leaves out.
    """

    encoder: str
    digest: str = ""
    length: int = 64
    hidden: int = 32
    dropout: float = 0.3
    reads_words: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.encoder or self.hidden < 1 or self.length < 1:
            raise ConfigError(f"encoder={self.encoder!r}, length={self.length}, hidden={self.hidden}", where="PretrainedText", remedy="name a folder, and use whole numbers of at least 1")  # fmt: skip

    def _open(self) -> Encoder:
        made: Encoder = need("atoll.adapters", "encoders", "PretrainedText").Encoder.open(self.encoder, digest=self.digest, length=self.length)  # fmt: skip
        return made

    @property
    def identity(self) -> str:
        """The hash of the encoder's files, and how much of a text it reads."""
        return f"{self._open().digest} {self.length}"

    def encode(self, texts: Sequence[str]) -> NDArray[Any]:
        """Return the mean of the last hidden states over each text, ``(rows, width)``.

        Raises:
            DataError: there is no such folder, or it has another hash.
        """
        return self._open().encode(texts)

    def build(self, inputs: int, classes: int, *, words: bool) -> nn.Module:
        """Make the module."""
        return _layers().Perceptron(self, inputs, classes)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class VectorMLP(OwnNetwork):
    """A hidden layer on the numbers of an utterance, in units of their deviation over the training rows.

    Attributes:
        hidden: units of the layer.
        dropout: share of the values that a step leaves out.
    """

    hidden: int = 32
    dropout: float = 0.3

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ConfigError(f"hidden={self.hidden}", where="VectorMLP", remedy="use a whole number of at least 1")

    def build(self, inputs: int, classes: int, *, words: bool) -> nn.Module:
        """Make the module."""
        return _layers().Perceptron(self, inputs, classes)  # type: ignore[no-any-return]


def _layers() -> Any:
    return need("atoll.crossmodal.layers", "torch", "a network of atoll.crossmodal")
