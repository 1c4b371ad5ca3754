"""sentence-transformers, with its modules and losses where its version keeps them; a test that imports this is skipped
without it."""

from __future__ import annotations

import pytest

library = pytest.importorskip("sentence_transformers", exc_type=ImportError)
try:
    from sentence_transformers.sentence_transformer import losses, modules
except ImportError:  # before 5.4
    from sentence_transformers import losses
    from sentence_transformers import models as modules

__all__ = ["library", "losses", "modules"]
