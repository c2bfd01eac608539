"""The paper: every table and figure as an item, with the published numbers and ours."""
