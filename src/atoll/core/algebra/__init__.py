"""Values that combine: trees of arrays, aggregates, metrics, and streams of random numbers."""
