"""Hyperparameter search: Optuna proposes settings, and processes train them as ensembles."""
