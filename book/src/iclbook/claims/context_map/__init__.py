"""Claims about contexts as changes of weights."""
