from .reducer import BoundedSum as BoundedSum
