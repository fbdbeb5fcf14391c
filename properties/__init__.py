"""Claims of the theorem and of finite width, one file each: run ``pytest properties/`` against a simulator.

In a wheel this folder is the package ``attncheck.properties``.
"""
