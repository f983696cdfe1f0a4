"""Claims of attention that runs gradient descent."""
