"""The documents and search indices on disk, which one process at a time writes and any number of processes read."""
