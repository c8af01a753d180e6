"""Devices: which accelerator a program is for, and how its arrays are divided over several."""
