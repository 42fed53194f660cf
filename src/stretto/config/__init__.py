"""The one typed configuration: read from TOML, overridden by ``key=value``, validated before anything starts."""

from stretto.config.schema import RunConfig

__all__ = ["RunConfig"]
