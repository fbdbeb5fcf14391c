"""What the commands of the command line do, a module for each; `attncheck.cli` says what they take."""
