"""Power, energy and clock of any code: a meter for a block of it, and what a board draws second by second."""
