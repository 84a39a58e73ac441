"""Every fault, in the order of the table."""

from tests.agent import faults_files, faults_sensor, faults_clock, faults_beside, faults_others, faults_ends  # noqa: F401, I001 - each puts its own into the list
from tests.agent.faults_made import FAULTS

__all__ = ["FAULTS"]
