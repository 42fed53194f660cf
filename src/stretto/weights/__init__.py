"""Weights on their way from the learner to engines: ``transport`` is the contract, ``memory`` and ``files`` are two."""
