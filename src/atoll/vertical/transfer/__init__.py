"""Models for parties that share few rows: what one party's labels teach another."""
