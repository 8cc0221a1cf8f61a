"""Contract suites for pytest: what every extension of a seam must do, ours and that of an installed package.

Inherit a suite in a test file of your own, and give the fixtures that it asks for:

    from allocembed.testing.allocators import AllocatorContract

    class TestMiddleFirst(AllocatorContract):
        @pytest.fixture
        def name(self) -> str:
            return "middle"

`examples/plugin` tests a backbone and an allocator in this way. pytest is imported here alone, so the package
does not depend on it.
"""

import pytest

SUITES = ("allocators", "backbones", "decoders", "stores", "workers")
pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in SUITES))
