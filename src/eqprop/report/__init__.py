"""Reports on a paper: items, results, verdicts and pages."""
