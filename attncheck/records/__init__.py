"""What a run wrote: the schema, and one pass over a record."""
