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

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
