"""Claims of singular learning: learning coefficients, phases, and what each length of context adds to them."""
