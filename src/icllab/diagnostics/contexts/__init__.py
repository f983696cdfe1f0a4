"""Context maps: weights that answer without a context as a model answers with it, and tests of them."""
