"""From a validated config to a finished run."""
