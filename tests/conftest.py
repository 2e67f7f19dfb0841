"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: `default`, `quick` with half of the examples, or `soak` with forty
times as many. Every run draws other examples.
"""

import os
import signal

from hypothesis import HealthCheck, Phase, settings

from tests.conformance import COLLECTED

pytest_itemcollected = COLLECTED.pytest_itemcollected

EXAMPLES = 30

# No deadline: on a busy machine a slow example is not a wrong one. Nothing is explained either: that runs a failing
# example hundreds of times more, beyond a test's time limit.
settings.register_profile(
    "default",
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
settings.register_profile("quick", settings.get_profile("default"), max_examples=EXAMPLES // 2)
settings.register_profile("soak", settings.get_profile("default"), max_examples=EXAMPLES * 40)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Whoever starts the tests in the background may have told them to ignore SIGINT, and they would hand that on to the
# programs that they start. A handler is not handed on: those programs begin with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
