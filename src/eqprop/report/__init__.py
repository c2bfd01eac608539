"""Reports on a paper: items, results, verdicts, and pages that show them."""
