"""Hypothesis profiles: no limit on time, so that a busy machine fails no test; with CI set, the same examples each time."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("local", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
