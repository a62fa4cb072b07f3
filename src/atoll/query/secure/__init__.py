"""SQL under shares: a plan of operators that three parties carry out on shared rows, made from a statement (`plan`), measured (`extents`) and computed (`tables`)."""
