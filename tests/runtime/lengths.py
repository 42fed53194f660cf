"""A reward that a random policy gets something different for each time. Imports nothing: scoring starts fast."""


def length(text: str, answer: object, info: object) -> float:
    """Characters of the answer."""
    return float(len(text))
