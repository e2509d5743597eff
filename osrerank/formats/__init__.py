"""Files of the field: topics, judgments, runs, candidates, JSON lines, archives. One reader and one writer each."""
