"""Celery workers that score query and document texts for clients."""
