"""Training: a loop, its pure steps, checkpoints, search and what is made of the results."""
