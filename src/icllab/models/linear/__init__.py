"""Linear and generalised attention on rows of a prompt, and the Gram form without matrices."""
