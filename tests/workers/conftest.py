"""A Ray cluster of two cores that the tests share."""

from collections.abc import Iterator

import pytest

from allocembed.workers import WorkerOptions, find_workers
from allocembed.workers.pool import PooledWorkers


@pytest.fixture(scope="package")
def ray_cluster(ray_home: None) -> Iterator[None]:
    with find_workers("ray", WorkerOptions(workers=2)) as workers:
        assert isinstance(workers, PooledWorkers)
        workers.connect()
        yield
