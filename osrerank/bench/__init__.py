"""Throughput of this library and its peers on the same pairs, in one run."""
