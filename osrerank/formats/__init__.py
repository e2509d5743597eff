"""Read and write the field's files: topics, judgments, runs, candidates, JSON lines, archives; each in one place."""
