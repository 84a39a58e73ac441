"""A workload without a target, and its profile."""

import pytest
from tests.support import training_runs as made

from wattune.profiling import profile


@pytest.fixture(scope="module")
def workload():
    return made.workload(target=None)


@pytest.fixture(scope="module")
def table(workload):
    return profile(made.nano(), workload, reference=False)
