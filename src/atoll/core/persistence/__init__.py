"""What outlives a crash: checkpoints, private states, journals, files that are whole or absent."""
