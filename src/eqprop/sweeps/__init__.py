"""Sweeps: train a grid or a list of recipes on many processes or machines, into one table."""
