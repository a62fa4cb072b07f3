"""Readers for files, and for data sets of other libraries."""

from .arrays import read_idx, read_idx_pair, read_npz
from .arrow import from_arrow, read_parquet
from .csv import read_csv
from .leaf import read_leaf
from .libraries import from_hugging_face, from_pandas, from_torch
from .tables import from_csv_files, from_csv_folder, from_dataframes
from .text_vectors import TextVectors, WordVectors, with_text_vectors
from .tokens import from_tokens

__all__ = [
    "TextVectors",
    "WordVectors",
    "from_arrow",
    "from_csv_files",
    "from_csv_folder",
    "from_dataframes",
    "from_hugging_face",
    "from_pandas",
    "from_tokens",
    "from_torch",
    "read_csv",
    "read_idx",
    "read_idx_pair",
    "read_leaf",
    "read_npz",
    "read_parquet",
    "with_text_vectors",
]
