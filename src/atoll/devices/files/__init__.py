"""Recorded fleets and traces as files: NumPy arrays in one archive with a checked header, never pickled."""
