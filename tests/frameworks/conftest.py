"""The fixtures of the benchmark on public bugs lie beside the package, not in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
os.environ.setdefault("KERAS_BACKEND", "torch")
