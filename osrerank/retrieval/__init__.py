"""Plan the first pass: its request, query expansion, and the fields that it searches and the model reads."""
