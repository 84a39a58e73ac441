"""Tables and sentences of the README and the docs, made from the files in results/, one module for each topic."""
