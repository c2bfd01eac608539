"""Sweeps: a grid or a list of recipes, run by many processes or machines, and one table."""
