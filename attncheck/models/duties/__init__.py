"""Properties that any attention model must have, measured on whole PyTorch models."""
