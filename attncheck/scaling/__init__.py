"""How the sizes of what a model computes grow with its width: measured, and held to what is predicted."""
