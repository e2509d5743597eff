"""Celery workers that score what clients send."""
