"""Starts a worker: ``python -m workers``, the same as ``osrerank worker``."""

from workers.cli import worker

if __name__ == "__main__":
    worker(obj={})
