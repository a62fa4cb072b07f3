"""The program's side: verbs, scopes, sums and their reducers, sessions."""
