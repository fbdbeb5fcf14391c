"""What the commands of the command line do, a module for each; `attncheck.commands.cli` says what they take."""
