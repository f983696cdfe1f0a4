"""Claims about gradient descent in the forward pass."""
