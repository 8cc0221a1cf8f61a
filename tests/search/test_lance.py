"""lancedb without its remote client, and the client when somebody wants it."""

import subprocess
import sys

import pytest

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
SCRIPT = """
import sys
from allocembed.search.lance import import_lancedb
lancedb, _ = import_lancedb()
before = "lance_namespace_urllib3_client.api.table_api" in sys.modules
{}
"""


def run(lines: str) -> str:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(lines)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_the_client_is_imported_when_lancedb_calls_it(tmp_path):
    lines = f"""
database = lancedb.connect({str(tmp_path)!r})
database.create_table("one", [{{"a": 1}}])
print(before, database.list_tables().tables)
"""
    assert run(lines) == "False ['one']"


@pytest.mark.slow
def test_the_client_is_imported_when_another_module_reads_it():
    lines = """
import lance_namespace, lance_namespace_urllib3_client as client
print(before, client.models.ListTablesResponse is lance_namespace.ListTablesResponse, client.TableApi.__name__)
"""
    assert run(lines) == "False True TableApi"


@pytest.mark.slow
def test_pandas_is_not_imported_but_can_be_used():
    pytest.importorskip("pandas")
    lines = """
import pyarrow
hidden = "pandas" not in sys.modules
print(hidden, pyarrow.table({"a": [1, 2]}).to_pandas().shape)
"""
    assert run(lines) == "True (2, 1)"
