"""The HTTP rerank API: dialects, limits, errors and the service behind them."""
