"""Helpers independent of attention: errors, files, streams, processes, text."""
