"""What the theorem and finite width demand, a file for each claim: ``pytest properties/`` asks it of a simulator.

In a wheel this folder is the package ``attncheck.properties``.
"""
