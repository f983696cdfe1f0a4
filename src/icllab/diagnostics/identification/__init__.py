"""Identification of the algorithm that a network implements: distances, fitted candidates and verdicts."""
