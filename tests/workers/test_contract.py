"""Each engine under the suite that every engine must pass."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from allocembed.errors import ConfigError
from allocembed.testing.workers import WorkersContract
from allocembed.workers import WORKERS, WorkerOptions, Workers, find_workers
from allocembed.workers.inline import InlineWorkers


class TestInline(WorkersContract):
    survives = False

    @pytest.fixture
    def workers(self) -> Iterator[Workers]:
        with find_workers() as workers:
            yield workers


class TestProcesses(WorkersContract):
    @pytest.fixture
    def workers(self) -> Iterator[Workers]:
        with find_workers("processes", WorkerOptions(devices="cpu,cpu")) as workers:
            yield workers


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'")
class TestRay(WorkersContract):
    @pytest.fixture
    def workers(self, ray_cluster: None) -> Iterator[Workers]:
        with find_workers("ray", WorkerOptions(workers=2)) as workers:
            yield workers


def test_an_engine_is_a_class_and_a_line_of_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nearby(InlineWorkers):
        pass

    monkeypatch.setitem(WORKERS, "nearby", Nearby)
    assert isinstance(find_workers("nearby"), Nearby)
    with pytest.raises(ConfigError, match=r"unknown engine 'nearbi' \(did you mean nearby\?\)"):
        find_workers("nearbi")


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ("inline", WorkerOptions(workers=2), "--engine inline has no use for --workers"),
        ("processes", WorkerOptions(devices="cpu", address="auto"), "--engine processes has no use for --address"),
        ("ray", WorkerOptions(devices="cpu,cpu"), "--engine ray has no use for --devices"),
        ("ray", WorkerOptions(workers=0), "--workers must be at least 1, not 0"),
        ("inline", WorkerOptions(commit=0), "--commit must be at least 1, not 0"),
    ],
)
def test_options_that_an_engine_has_no_use_for_are_refused(engine: str, options: WorkerOptions, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find_workers(engine, options)
