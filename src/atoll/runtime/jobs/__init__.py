"""Jobs: what is handed in, who may have signed it, what became of it, and who runs it when."""
