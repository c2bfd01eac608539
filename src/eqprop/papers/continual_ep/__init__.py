"""The paper, item by item: every table and figure, the published numbers beside ours."""
