"""From text to terms: tokenisers, filters and analyzers that agree with Lucene's."""
