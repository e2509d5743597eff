"""Read and write query sets, judgments, runs and candidates, also from archives and compressed files."""
