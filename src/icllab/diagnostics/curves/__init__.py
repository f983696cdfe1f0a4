"""When something changed: transition times, survival with censored runs, break points, fits of flows."""
