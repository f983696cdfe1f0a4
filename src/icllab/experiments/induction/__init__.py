"""Claims of the induction head: how it is learned, when, in place of what, and what has to go right."""
