"""What survives a crash: checkpoints, private states, journals, and files that are complete or absent."""
