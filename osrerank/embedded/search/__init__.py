"""Searches and their parts: ranking, highlights and aggregations, and the related requests for terms."""
