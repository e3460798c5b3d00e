"""ACLs: entries, patterns of resources, filters, decisions, and the text of audit lines. Knows no tree."""
