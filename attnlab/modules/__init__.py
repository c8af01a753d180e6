"""Flax Linen modules: parameters and naming around the functions of `attnlab.ops`."""
