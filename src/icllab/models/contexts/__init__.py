"""What a context does as a change of weights: models where it is known, and the exact pieces of a transformer."""
