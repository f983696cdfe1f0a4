"""Claims of the asymptotic theory of in-context learning by linear attention."""
