"""Mechanisms: their names for programs, a user's own, and pictures of the pairs that they see."""
