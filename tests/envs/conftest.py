from __future__ import annotations

import string

import pytest

from stretto.models.tokenizer import LightTokenizer, char_tokenizer, light_tokenizer


@pytest.fixture(scope="session")
def chars(tmp_path_factory: pytest.TempPathFactory) -> LightTokenizer:
    """Character tokenizer over printable ASCII."""
    directory = tmp_path_factory.mktemp("chars")
    char_tokenizer(string.printable[:95] + "\n").save_pretrained(directory)
    return light_tokenizer(directory)
