"""Proxy sweeps as jobs: a durable queue in the database, and one process for each sweep that is worked on.

queue          jobs: submit, status, cancel, retry; begin, finish, fail; no torch
runners        starts a process for each sweep, watches it, and records what it leaves in its folder; no torch
sweep_process  that process: the core's ``estimate`` in the folder of the sweep
answers        answers about jobs, kept for a moment; no torch
"""
