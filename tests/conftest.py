"""Fixtures that several rooms share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from serving import Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of the tests' own, one for all of them: each test asks it for a fresh database."""
    from serving import Postgres

    made = Postgres()
    yield made
    made.close()
