"""The infinite-width limit: kernels by Definition 1, and the hierarchical law of Theorem 1.

The package can be called like the function of its name: ``attncheck.limit(layer)``.
"""

from __future__ import annotations

import sys
import types

from attncheck.attention import AttentionLayer
from attncheck.limit.kernel import Kernel, image_kernel, input_covariance, input_kernel, psd_root
from attncheck.limit.law import LimitLaw, draw_limit, limit

__all__ = [
    "Kernel",
    "LimitLaw",
    "draw_limit",
    "image_kernel",
    "input_covariance",
    "input_kernel",
    "limit",
    "psd_root",
]


class _CallablePackage(types.ModuleType):
    # Importing a submodule binds the package itself to the name `attncheck.limit`, which is also the name
    # of the public function; whichever of the two is found there, calling it gives the law.
    def __call__(self, layer: AttentionLayer) -> LimitLaw:
        return limit(layer)


sys.modules[__name__].__class__ = _CallablePackage
