"""The paper's published experiments at full size, beside exactly computed values.

`experiments` defines them, `draw` samples them exactly in law, `kde` is the published estimator, `exact` computes;
`run` fills a folder, and `figures` and `numbers` present it.
"""
