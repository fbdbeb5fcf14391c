"""Commands of the command line, one module each, and their dispatch in `attncheck.commands.cli`."""
