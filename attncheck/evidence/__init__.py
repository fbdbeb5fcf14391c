"""Evidence with a budget: streams, families of tests, looks, verdicts and the ledger of a run."""
