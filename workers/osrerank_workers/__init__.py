"""Celery workers that score documents for a query, or encode them, on behalf of clients."""
