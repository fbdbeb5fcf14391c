"""Planned test items and the looks that decide on them."""
