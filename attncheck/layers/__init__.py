"""Descriptions of attention layers, Netsor programs and stacks; nothing is drawn here."""
