"""`make instructions`: what the processor does for an operation, counted."""
