"""Run records: schema, readers and writer."""
