"""Training, sessions and probes under a power cap: one metered, limited, monitored and resumable run.

CappedRun      the device at a setting, with its meter, limiter and monitor, as one context
Readings       the newest power, temperature and time above the cap
CapFollower    a cap that changes: brings limit and setting to it, and pauses the work
PowerLimiter   applies readings to the setting
BoardMonitor   temperature, throttling and other events of the board
"""
