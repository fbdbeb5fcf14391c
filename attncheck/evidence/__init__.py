"""Evidence within a false-alarm budget: families of tests, looks, verdicts and the ledger of a run.

Arguments that are out of range, not finite or of wrong shape raise `InputError`.
"""
