"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: `default`, or `soak` with twenty times the examples."""

import os
import signal

from hypothesis import HealthCheck, settings

EXAMPLES = 60

# No deadline: on a busy machine a slow example is not a wrong one.
settings.register_profile("default", max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("default"), max_examples=EXAMPLES * 20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Whoever starts the tests in the background may have told them to ignore SIGINT, and they would hand that on to the
# programs that they start. A handler is not handed on: those programs begin with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
