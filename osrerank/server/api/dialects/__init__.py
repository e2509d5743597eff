"""The requests and responses of the HTTP dialects.

A class per dialect turns a request into questions, and their judgements into the dialect's response. Unknown keys are
ignored, as all servers of these dialects do. The ``...Response`` classes only describe the JSON of the responses.
"""
