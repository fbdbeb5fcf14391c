"""The published experiments of the paper at full size, beside what is computed exactly.

`experiments` says what was published, `draw` samples it exactly in law, `kde` is the published estimator and
`exact` the computed values; `run` makes a folder of them, and `figures` and `numbers` say what came out.
"""
