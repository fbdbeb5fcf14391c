"""Descriptions: attention layers, Netsor programs and stacks, and what can be read off them. Nothing is drawn here."""
