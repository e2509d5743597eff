"""The requests and responses of the HTTP dialects, one class for each dialect's request.

A request becomes questions, and their judgements become the dialect's response. Unknown keys are ignored, as every
server of these dialects does. Responses are plain JSON content, which the ``...Response`` classes describe.
"""
