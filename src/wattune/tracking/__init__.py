"""Power, energy and clock of any code and any board: meters, rows of a file, and other tools' trackers."""
