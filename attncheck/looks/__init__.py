"""Plans and looks: one property on one layer or program, and what a run visits."""
