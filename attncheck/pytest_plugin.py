"""The pytest plugin: options, and the table after a run."""
