"""Data: load it, divide it among clients, corrupt some of it, and describe the result.

```python
import atoll.data

data = atoll.data.digits()
islands = atoll.data.dirichlet(data, parties=100, alpha=0.3, seed=0)
islands = atoll.data.corrupt(islands, {"noise": 0.1}, seed=0)
print(islands.describe().table())
```

Importing this package imports NumPy only.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bundled import breast_cancer, diabetes, digits, iris, linnerud, wine
    from .corruption import (
        Blur,
        Corruption,
        CorruptionScope,
        Fake,
        GradedNoise,
        Irrelevant,
        Mislabel,
        Noise,
        Rotate,
        SaltAndPepper,
        corrupt,
    )
    from .dataset import About, Dataset
    from .describe import Description
    from .folder import (
        airfoil,
        airline_tweets,
        available,
        boston_housing,
        celeba_attributes,
        cifar10_subset,
        crowd_labels,
        digit_domains,
        divided_by_party,
        fate_vertical,
        gas_turbine,
        kddcup99_tcp,
        mnist,
        movielens_100k,
        qmnist_writers,
        read_data,
        sentiment140,
    )
    from .folder import (
        open as open,  # noqa: A004 - read as atoll.data.open("mnist"); not in __all__, to leave the builtin alone
    )
    from .generation import linear, synthetic, synthetic_iid
    from .islands import Islands
    from .join import concatenate
    from .labels import Domains, LabelMap, LabelPool, adaptation, label_map, require_labels, require_public, unlabel
    from .names import ColumnNames, Tags
    from .partition import (
        classes_per_client,
        dirichlet,
        dominant_class,
        feature_skew,
        gaussian_sizes,
        iid,
        natural,
        quantity_skew,
        shards,
    )
    from .prepare import hash_words, scaled
    from .readers import (
        TextVectors,
        WordVectors,
        from_arrow,
        from_csv_files,
        from_csv_folder,
        from_dataframes,
        from_hugging_face,
        from_pandas,
        from_tokens,
        from_torch,
        read_csv,
        read_idx,
        read_idx_pair,
        read_leaf,
        read_npz,
        read_parquet,
        with_text_vectors,
    )
    from .shard import Shard
    from .table import DataTable
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "dataset": ("About", "Dataset"),
            "bundled": ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine"),
            "corruption": (
                "Blur",
                "Corruption",
                "Fake",
                "GradedNoise",
                "Irrelevant",
                "Mislabel",
                "Noise",
                "Rotate",
                "SaltAndPepper",
                "CorruptionScope",
                "corrupt",
            ),
            "describe": ("Description",),
            "folder": (
                "airfoil",
                "airline_tweets",
                "available",
                "boston_housing",
                "celeba_attributes",
                "cifar10_subset",
                "crowd_labels",
                "digit_domains",
                "divided_by_party",
                "fate_vertical",
                "gas_turbine",
                "kddcup99_tcp",
                "mnist",
                "movielens_100k",
                "qmnist_writers",
                "read_data",
                "sentiment140",
                "open",
            ),
            "generation": ("linear", "synthetic", "synthetic_iid"),
            "islands": ("Islands",),
            "join": ("concatenate",),
            "labels": (
                "Domains",
                "LabelMap",
                "LabelPool",
                "adaptation",
                "label_map",
                "require_labels",
                "require_public",
                "unlabel",
            ),
            "names": ("ColumnNames", "Tags"),
            "partition": (
                "classes_per_client",
                "dirichlet",
                "dominant_class",
                "feature_skew",
                "gaussian_sizes",
                "iid",
                "natural",
                "quantity_skew",
                "shards",
            ),
            "prepare": ("hash_words", "scaled"),
            "readers": (
                "TextVectors",
                "WordVectors",
                "from_arrow",
                "from_csv_files",
                "from_csv_folder",
                "from_dataframes",
                "from_tokens",
                "from_hugging_face",
                "from_pandas",
                "from_torch",
                "read_csv",
                "read_idx",
                "read_idx_pair",
                "read_leaf",
                "read_npz",
                "read_parquet",
                "with_text_vectors",
            ),
            "shard": ("Shard",),
            "table": ("DataTable",),
        },
    )

__all__ = [
    "About",
    "Blur",
    "ColumnNames",
    "Corruption",
    "CorruptionScope",
    "DataTable",
    "Dataset",
    "Description",
    "Domains",
    "Fake",
    "GradedNoise",
    "Irrelevant",
    "Islands",
    "LabelMap",
    "LabelPool",
    "Mislabel",
    "Noise",
    "Rotate",
    "SaltAndPepper",
    "Shard",
    "Tags",
    "TextVectors",
    "WordVectors",
    "adaptation",
    "airfoil",
    "airline_tweets",
    "available",
    "boston_housing",
    "breast_cancer",
    "celeba_attributes",
    "cifar10_subset",
    "classes_per_client",
    "concatenate",
    "corrupt",
    "crowd_labels",
    "diabetes",
    "digit_domains",
    "digits",
    "dirichlet",
    "divided_by_party",
    "dominant_class",
    "fate_vertical",
    "feature_skew",
    "from_arrow",
    "from_csv_files",
    "from_csv_folder",
    "from_dataframes",
    "from_hugging_face",
    "from_pandas",
    "from_tokens",
    "from_torch",
    "gas_turbine",
    "gaussian_sizes",
    "hash_words",
    "iid",
    "iris",
    "kddcup99_tcp",
    "label_map",
    "linear",
    "linnerud",
    "mnist",
    "movielens_100k",
    "natural",
    "qmnist_writers",
    "quantity_skew",
    "read_csv",
    "read_data",
    "read_idx",
    "read_idx_pair",
    "read_leaf",
    "read_npz",
    "read_parquet",
    "require_labels",
    "require_public",
    "scaled",
    "sentiment140",
    "shards",
    "synthetic",
    "synthetic_iid",
    "unlabel",
    "wine",
    "with_text_vectors",
]
