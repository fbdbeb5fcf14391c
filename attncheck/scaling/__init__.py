"""Width scaling of models: measure sizes and test them against predictions."""
