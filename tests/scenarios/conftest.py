"""What all scenarios share."""

from tests.cli.conftest import compiled

__all__ = ["compiled"]
