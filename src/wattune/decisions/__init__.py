"""What to measure next, what is best of what is known, and how sure that is: numbers, without boards or models."""
