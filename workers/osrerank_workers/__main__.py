"""Start a worker: ``python -m osrerank_workers``, the same as ``osrerank worker``."""

from osrerank_workers.cli import worker

if __name__ == "__main__":
    worker(obj={})
