"""The part of OpenSearch's REST API that the engine supports."""
