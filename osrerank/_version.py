"""The version, where everything inside may read it."""

__version__ = "0.1.0"
