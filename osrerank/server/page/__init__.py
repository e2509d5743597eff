"""The comparison page, ``/ui``, which shows the engine's order of a search's hits next to the reranked order."""
