"""What a site's tables lie in: a folder of CSV and Parquet files, a file of DuckDB or SQLite, a database of PostgreSQL. `Silo` runs local SQL over any of them."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
