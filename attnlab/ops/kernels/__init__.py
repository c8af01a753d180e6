"""Pallas kernels for TPU and NVIDIA GPU behind the functions of `attnlab.ops`."""
