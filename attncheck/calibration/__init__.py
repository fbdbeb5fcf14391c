"""False alarms, measured: of checks of layers, and of those of programs."""
