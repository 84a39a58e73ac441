"""The fastest clocks under a cap for a program of which no line is changed: ``wattune guard``."""
