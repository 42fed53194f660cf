"""Learning at an exact lag on trees of tokens: the world, the loop and a probe that several papers share."""
