"""Whether reranking helps on an index, and with which depth and weight of the first pass, by judged queries."""
