"""Budgets of energy over time: the sun, a battery with a reserve, and the rule by which training uses them.

Numbers and files alone: nothing here knows a device.
"""
