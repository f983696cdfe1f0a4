"""Steps of gradient descent."""
