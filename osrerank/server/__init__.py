"""The HTTP rerank API, the comparison page, and the set-up of clusters that call the API themselves."""
