"""The server's side of a training: rounds, invitations, evaluation, and the entries of a round's row."""
