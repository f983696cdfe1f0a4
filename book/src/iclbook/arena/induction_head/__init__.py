"""The time at which networks of many sizes learn to read labels off their context."""
