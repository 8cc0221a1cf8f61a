"""The names of the package where it is not installed, as in AllocEmbed's own tests."""

from allocembed_plugin.allocator import MiddleFirst
from allocembed_plugin.clip import FAMILY

from allocembed.allocators.registry import METHODS
from allocembed.backbones.registry import FAMILIES

if "clip" not in FAMILIES:
    FAMILIES["clip"] = FAMILY
if "middle" not in METHODS:
    METHODS["middle"] = MiddleFirst
