"""Proxy sweeps as jobs: a durable queue in the database, and the processes that work on it.

queue           jobs: submit, status, cancel, retry; no torch
claims          what a worker holds and what it brings back; no torch
leases          units of work: claim, renew, finish, fail, requeue; no torch
store_queue     the queue of units as a worker uses it; no torch
supervisor      starts and restarts the worker processes; no torch
worker          the loop of a worker, which trains
worker_process  a worker as a process of the server, on the units of its database
sweep_unit      one unit of a sweep: a proxy run, or the choice of the next runs
"""
