"""The ground: what arguments must be, leading axes, token ids, and two faults of XLA:CPU."""
