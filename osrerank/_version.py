"""The package's version, in a module without imports, so that any module may import it."""

__version__ = "0.3.0"
