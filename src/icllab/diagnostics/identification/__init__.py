"""Which algorithm a network implements: distances between predictors, candidates fitted to it, verdicts."""
