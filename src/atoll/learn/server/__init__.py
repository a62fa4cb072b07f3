"""The server's side of a training: rounds, invitations, evaluation, and what a round's row says."""
