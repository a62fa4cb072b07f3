"""Linear models over columns at several parties."""
