"""Trees over columns at several owners."""
