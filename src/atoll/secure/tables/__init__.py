"""Oblivious operators over tables that three parties share: what each party sees depends on the number of rows alone.

Five nouns. A **Trio** (`atoll.secure.shares`) is the three parties; a column is words under XOR or numbers. A **SharedTable** is columns of one length and a hidden
bit a row that says whether the row counts. A **Rearrangement** is an order of rows that no party knows. A **SortKey** says by what rows are ordered.
A **KeyReader** is one of the three who may read keys in the clear, so that nothing needs to be sorted under shares.

How rows walk: owners share their rows, filled up to a public number. An operator shuffles them, opens the order of the shuffled keys, which is uniform, and puts
the rows into that order; scans then carry values along the rows of a group. No operator drops a row: it takes the row's bit away. At the end the rows are shuffled
once more, the bits are opened, and then the rows that count.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
