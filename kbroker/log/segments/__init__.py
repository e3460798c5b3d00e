"""One segment and its indexes, and the ordered list of a log's segments. Knows no producers."""
