"""The version of osrerank. This module imports nothing, so any module can import it."""

__version__ = "0.3.0"
