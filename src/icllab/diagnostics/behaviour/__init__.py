"""Losses, accuracies and scores by position, and attention scores of heads."""
