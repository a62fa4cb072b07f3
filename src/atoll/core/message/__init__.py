"""Messages: trees of values, and their binary form.

A message is a tree of dicts (str keys), lists and tuples. Its leaves are

* scalars: None, bool, int, float, complex, str, bytes, ``datetime`` (naive or aware), ``date``,
  ``timedelta`` and NumPy scalars;
* NumPy arrays of bool, int, uint, float (16 to 64 bits), complex, ``datetime64``, ``timedelta64`` and
  fixed-width text (``S``, ``U``), of any shape and layout;
* `StringArray` and `BytesArray` (variable length), `BFloat16`, `Bits` (packed booleans), `Words` (whole numbers
  modulo ``2^p``, packed to ``p`` bits) and `Masked` (values with nulls);
* PyTorch tensors on the CPU, which come back as NumPy arrays.

Each comes back with its own type, except tensors, subclasses of dict and ndarray, byte order and memory
layout (little-endian and C order on the wire), and time zones (kept as their offset from UTC). The wire
form is described in `atoll.core.message.wire`. It has no code and no pickle, and the reader checks
everything against `Limits` before it uses it. Values that are not finite pass; a `Schema` refuses them.
"""

from atoll.core.message.arrays import BFloat16, Bits, BytesArray, Masked, StringArray
from atoll.core.message.decoder import Decoder, decode, split_frames
from atoll.core.message.encoder import encode, encode_blocks, encode_chunks, equal, fingerprint, frame_message
from atoll.core.message.schema import ArraySpec, Each, ScalarSpec, Schema
from atoll.core.message.size import nbytes
from atoll.core.message.wire import DEFAULT_LIMITS, Limits
from atoll.core.message.words import Words

__all__ = [
    "DEFAULT_LIMITS",
    "ArraySpec",
    "BFloat16",
    "Bits",
    "BytesArray",
    "Decoder",
    "Each",
    "Limits",
    "Masked",
    "ScalarSpec",
    "Schema",
    "StringArray",
    "Words",
    "decode",
    "encode",
    "encode_blocks",
    "encode_chunks",
    "equal",
    "fingerprint",
    "frame_message",
    "nbytes",
    "split_frames",
]
