"""The survey's methods on quadratics whose optimum is known: one module with ``ROWS`` per family."""
