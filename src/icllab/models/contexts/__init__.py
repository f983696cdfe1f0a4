"""Contexts as changes of weights: models with a known change, and the exact parts of a transformer."""
