"""What a predictor does at each position and what its heads attend to."""
