"""The requests and responses of the HTTP dialects.

A dialect is the format of another rerank API's requests and responses, such as Cohere's. Each ``...Request`` class
parses the requests of a dialect, turns them into questions, and builds the dialect's response from the scores
(`osrerank.server.api.service`). It ignores unknown keys, as the servers of these dialects do. The ``...Response``
classes only describe the responses in the OpenAPI document.
"""
