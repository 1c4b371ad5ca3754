"""``python -m fastbert`` is the ``fastbert`` command."""

import sys

from .cli.main import main

sys.exit(main())
