"""Searches of every kind of client, with everything between and behind them failing: ``python -m tests.chaos``."""
