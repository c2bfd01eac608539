"""Papers: published numbers, training runs and items of each."""
