"""Models that the mechanisms come from, as Flax Linen modules."""
