"""Tests of the experiments, a folder each."""
