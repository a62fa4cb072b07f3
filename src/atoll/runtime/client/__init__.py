"""The people's end: submit, look, follow, abort, resume, clone, fetch."""
