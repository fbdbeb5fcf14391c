"""Evidence within a false-alarm budget: families of tests, looks, verdicts and the ledger of a run."""
