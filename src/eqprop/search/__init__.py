"""Hyperparameter search: Optuna proposes settings, ensembles train them, processes share them."""
