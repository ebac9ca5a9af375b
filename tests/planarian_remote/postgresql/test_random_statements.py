"""Random schemas, statements, rollbacks and another writer, against canonical dumps (guarantees 2 and 7).

``PLANARIAN_CYCLES`` sets the number of random runs (10 by default); the choice is seeded and repeatable.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from planarian_core.testing.postgresql import PrivateCluster
from planarian_core.testing.postgresql_machine import SqlMachine, Totals

CYCLES = settings(
    max_examples=int(os.environ.get("PLANARIAN_CYCLES", "10")),
    stateful_step_count=24,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    phases=[Phase.generate, Phase.shrink] if os.environ.get("PLANARIAN_SHRINK") else [Phase.generate],
)


@pytest.mark.needs("postgresql")
def test_every_position_can_be_had_back_exactly(postgresql: PrivateCluster) -> None:
    class Machine(SqlMachine):
        cluster = postgresql
        totals = Totals()

    run_state_machine_as_test(Machine, settings=CYCLES)
    print(Machine.totals)
    assert Machine.totals.applied > Machine.totals.examples
    assert Machine.totals.rollbacks > 0
