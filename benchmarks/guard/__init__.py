"""The guard's rule on fake boards, see ``command``."""
