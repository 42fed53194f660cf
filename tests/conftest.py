"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from stretto.tabular.threads import start_threads

settings.register_profile("stretto", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stretto")  # no test may depend on how busy the machine is
start_threads()  # tests ask Numba about its threads; PyTorch's are to stay those of the environment
