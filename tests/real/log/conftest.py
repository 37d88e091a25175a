"""The contract of a log lives beside the tests of the in-memory one."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "log"))
pytest.register_assert_rewrite("contract")
