"""The base class of compressors: stages that encode a client's vector in a binary form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import Stage

from .rows import Groups, Per, check_per, lay_out, put_back

if TYPE_CHECKING:
    pass

__all__ = ["Packed"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Packed(Stage):
    """Base class of compressors: it lays out an update as one vector, and ``pack`` turns the vector into named arrays.

    The message is ``{"like": template, name: array, ...}``; the template has shapes and dtypes but no entries.
    """

    summable: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    packs: ClassVar[bool] = True

    def pack(self, rows: Array, groups: Groups, public: Tree, keys: Array) -> dict[str, Any]:
        """Compress vectors.

        Args:
            rows: one vector a client, shape ``(clients, entries)``.
            groups: which entries share a scale.
            public: the round's parameters.
            keys: one random key a client.

        Returns:
            Arrays with a leading client axis, or ``Ragged`` ones.
        """
        raise NotImplementedError

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Array:
        """Return the vectors as the server decodes them, shape ``(clients, entries)``, of this dtype."""
        raise NotImplementedError

    @property
    def grouping(self) -> Per:
        """Which entries share a scale."""
        per: Per = getattr(self, "per", "model")
        return per

    def groups(self, like: Tree) -> Groups:
        """The groups of a value or a template."""
        return Groups.of(like, self.grouping)

    def _check_per(self) -> None:
        check_per(self.grouping, type(self).__name__)

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Encode a block of one client."""
        block = T.map(
            lambda leaf: leaf[None] if hasattr(leaf, "shape") and leaf.shape else np.asarray(leaf)[None], value
        )
        return T.map(lambda leaf: leaf[0], self.encode_block(block, context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Pack each client's vector."""
        rows, like = lay_out(block)
        with np.errstate(over="ignore", invalid="ignore"):
            parts = self.pack(rows, self.groups(T.map(lambda leaf: leaf[0], like)), context.public, context.keys)
        return {"like": like, **parts}

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """Decode a block of one client."""
        del n
        one = T.map(lambda leaf: np.asarray(leaf)[None], total)
        return T.map(lambda leaf: leaf[0], self.decode_block(one, public))

    def decode_block(self, block: Tree, public: Tree, memory: Tree = None) -> Tree:
        """Unpack each client's vector and put it back into the tree."""
        del memory
        like = block["like"]
        groups = self.groups(T.map(lambda leaf: leaf[0], like))
        dtype = np.result_type(*[leaf.dtype for leaf in T.leaves(like)])
        parts = {name: leaf for name, leaf in block.items() if name != "like"}
        with np.errstate(over="ignore", invalid="ignore"):
            return put_back(self.unpack(parts, groups, dtype, public), like)


def wire_scale(scale: Array, *, up: bool = False) -> Array:
    """Round scales to the 32 bits on the wire; with ``up``, never below the original, so that no entry exceeds its scale."""
    sent = scale.astype(np.float32)
    if not up:
        return sent
    return np.where(sent.astype(np.float64) < scale, np.nextafter(sent, np.float32(np.inf)), sent)
