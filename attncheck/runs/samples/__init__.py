"""Tests of samples in files, without fresh draws."""
