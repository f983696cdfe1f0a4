"""Chains and particles that draw from a tempered posterior, and what says whether they have converged."""
