"""Papers, each with its published numbers, its runs and its items."""
