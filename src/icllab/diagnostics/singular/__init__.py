"""Learning coefficients, free energies and phases: the transformer as a singular learning machine."""
