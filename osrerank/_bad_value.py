"""Describe values that are not as expected."""


def describe_bad_value(error: Exception) -> str:
    """Describe the error of reading a JSON value: "'text' is missing" for a `KeyError`, or else its message."""
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
