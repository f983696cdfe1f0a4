"""Claims of the fixture book, by subject."""
