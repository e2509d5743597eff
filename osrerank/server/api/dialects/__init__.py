"""The requests and responses of the HTTP dialects.

A dialect is the format of another rerank API's requests and responses, such as Cohere's. Each ``...Request`` class
parses the requests of a dialect, turns them into questions (a query with its documents), and builds the response from
the scores that `osrerank.server.api.service` returns. It ignores unknown keys, as the servers of these dialects do. The
``...Response`` classes only describe the responses in the OpenAPI document.
"""
