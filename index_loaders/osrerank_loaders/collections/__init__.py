"""Loaders of published collections, with one module for each format."""
