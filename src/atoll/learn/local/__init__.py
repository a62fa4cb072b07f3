"""The client's side of a training: the local update, its losses, reports and releases."""
