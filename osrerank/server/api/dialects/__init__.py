"""The requests and responses of the HTTP dialects.

Each ``...Request`` class parses the requests of a dialect, turns them into questions, and builds the dialect's response
from the judgements. It ignores unknown keys, as the servers of these dialects do. The ``...Response`` classes only
describe the responses in the OpenAPI document.
"""
