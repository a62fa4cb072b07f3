"""Cross-site evaluation: every model on every site's data."""
