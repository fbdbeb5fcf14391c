"""Benchmark fixtures of public bugs are not in the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
os.environ.setdefault("KERAS_BACKEND", "torch")
