"""Keras runs on torch, where nothing else is asked."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
