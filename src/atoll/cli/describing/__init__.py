"""What ``atoll stats`` is made of: words of the command line as settings, the comparison with pooled rows, and tables."""
