"""Runs from plan to verdict, and checks of samples from files."""
