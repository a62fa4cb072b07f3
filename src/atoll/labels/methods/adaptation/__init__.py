"""Methods that adapt from domains with labels to one without: one method a file, and what their parties tell of features and classes."""
